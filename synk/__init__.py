"""synk runs one Python script on many GPUs, cores or machines.

    import synk, pytensor.tensor as pt
    synk.fork()                                   # one worker per core
    x, y = pt.matrix("x"), pt.matrix("y")
    f = synk.function([x], (x @ y).mean(0), bcast_inputs=[y])
    mean = f(x_values, y_values)                  # rows of x scattered, results averaged

The functions here pass their arguments on to the run that is open, which `synk.run.session.current` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as _Sequence
from contextlib import AbstractContextManager
from os import PathLike as _PathLike
from typing import Any, ParamSpec, TextIO, TypeVar

from synk.exact.run_values import n_rows as n_rows
from synk.run.arrays.data import Data as Data
from synk.run.arrays.per_rank import Cause as _Cause
from synk.run.collectives.assign import Broadcast, Scatter, SetValue
from synk.run.collectives.collective import Collective, describe_verb
from synk.run.collectives.exchange import AllToAll, ReduceScatter
from synk.run.collectives.gather import AllGather, Gather
from synk.run.collectives.read import CheckFinite, GetLengths, GetShapes, GetValue
from synk.run.collectives.reduce import AllReduce, Reduce
from synk.run.functions.function import Function as Function
from synk.run.functions.on_ranks import OnRanks as OnRanks
from synk.run.rank.failures import shorten as _shorten
from synk.run.session import current as _current
from synk.run.session.timeline import Timeline as _Timeline
from synk.values.errors import CollectiveMismatch as CollectiveMismatch
from synk.values.errors import CudaInitialisedError as CudaInitialisedError
from synk.values.errors import CudaUnavailable as CudaUnavailable
from synk.values.errors import LinkLost as LinkLost
from synk.values.errors import MachineLost as MachineLost
from synk.values.errors import NonFinite as NonFinite
from synk.values.errors import RankState as RankState
from synk.values.errors import RemoteError as RemoteError
from synk.values.errors import SharedMemoryFull as SharedMemoryFull
from synk.values.errors import SynkError as SynkError
from synk.values.errors import SynkStateError as SynkStateError
from synk.values.errors import SynkTimeout as SynkTimeout
from synk.values.errors import SynkWarning as SynkWarning
from synk.values.errors import WorkerDied as WorkerDied
from synk.values.namesake import warn_of_namesakes as _warn_of_namesakes
from synk.values.notebooks import Area as _Area
from synk.values.notebooks import in_notebook as _in_notebook

__version__ = "0.1.0"
_warn_of_namesakes()

__all__ = [
    "CollectiveMismatch",
    "CudaInitialisedError",
    "CudaUnavailable",
    "Data",
    "Function",
    "LinkLost",
    "MachineLost",
    "NonFinite",
    "OnRanks",
    "RankState",
    "RemoteError",
    "SharedMemoryFull",
    "SynkError",
    "SynkStateError",
    "SynkTimeout",
    "SynkWarning",
    "WorkerDied",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "check_finite",
    "close",
    "commit",
    "data",
    "distribute",
    "fork",
    "function",
    "gather",
    "get_lengths",
    "get_shapes",
    "get_value",
    "is_open",
    "n_ranks",
    "n_rows",
    "on_ranks",
    "per_rank",
    "pids",
    "reduce",
    "reduce_scatter",
    "restart",
    "scatter",
    "sequence",
    "set_value",
    "sharded_update",
    "timeline",
    "timeout",
    "topology",
    "turn",
]


def __dir__() -> list[str]:
    """List what is for users, with the parts of the package that a script has imported."""
    return [*__all__, "__version__", *({"extensions", "ops"} & globals().keys())]


_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


def _verb(kind: Callable[_Arguments, Collective[_Returned]]) -> Callable[_Arguments, _Returned]:
    """Return the public function of a collective, with the name, signature and docstring of its class."""
    collective: Any = kind
    what = collective.name

    def verb(*args: _Arguments.args, **keywords: _Arguments.kwargs) -> _Returned:
        try:
            return _current.session(what).collectives.run(collective, args, keywords)
        except Exception as error:
            _shorten(error)
            raise

    describe_verb(verb, collective)
    return verb


# --- the run ---------------------------------------------------------------------------------------


def fork(
    n_parallel: int | None = None,
    device: str | None = None,
    *,
    threads: int | None = None,
    timeout: float | None = None,
    hosts: str | _PathLike[str] | _Sequence[str] | None = None,
    interface: str | None = None,
    bind: str = "none",
    memory_limit: float | None = None,
    precision: str | None = None,
    cuda_graphs: bool = False,
) -> int:
    """Start a run: fork one worker process for each rank but this one.

    Call it before starting threads and before building functions.

    Parameters
    ----------
    n_parallel : int, optional
        Ranks, this process included; by default one per GPU, or per core that this process may use. If
        there are more ranks than GPUs, ranks share GPUs, with a `SynkWarning`.
    device : {"cpu", "cuda"}, optional
        The device to compute on; by default GPUs, if there are any and what they need is installed, else
        cores. Rank i has the i-th of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves visible.
    threads : int, optional
        Threads that matrix products of each rank use; by default cores // ranks, at least one. There is a
        `SynkWarning` if they are more than the CPUs.
    timeout : float, optional
        Seconds that every command may take before `SynkTimeout` is raised; by default there is no limit.
        `timeout` sets another limit for some commands.
    hosts : str, path or sequence of str, optional
        The machines to run on, this one first: ``"h1,h2"``, or ``["h1:2", "h2:4"]`` with numbers of ranks;
        the path of a hostfile, with a slash in it; or ``"auto"`` for the machines of the batch system.
        ``mpirun`` starts a process on each machine, and ``n_parallel`` is the number of ranks on each. All
        machines need ``pip install 'synk-pytensor[mpi]'``, and ssh without a password.
    interface : str, optional
        The network by which the machines reach each other, if they have several: ``"eth0"`` or
        ``"10.0.0.0/24"``.
    bind : {"none", "core", "numa"}
        Bind each rank, and this process until `close`, to cores of its own ("core") or to the cores of a NUMA
        node ("numa"); `topology` shows them. If there are more ranks than cores, "core" lets ranks share
        cores, with a `SynkWarning`.
    memory_limit : float, optional
        The fraction of each GPU's memory that the arrays of all ranks on it may take together; by default
        0.9. A run on cores refuses this option and the next two.
    precision : {"float32", "tf32", "bfloat16", "float16"}, optional
        The precision in which GPUs multiply float32 matrices: "tf32" is faster and keeps 10 bits of each
        factor's fraction. With "bfloat16" (7 bits) and "float16" (10 bits, nothing above 65504), arrays
        between products are kept in 16 bits too; shared variables, updates and results stay float32. By
        default "float32", unless an environment variable says otherwise (docs/gpu.rst).
    cuda_graphs : bool
        Whether GPUs record the kernel launches of a function, once it has been called a few times with the
        same shapes, and repeat them as one CUDA graph from then on. A warning says for which functions it is
        impossible.

    Returns
    -------
    int
        Number of ranks.

    Raises
    ------
    SynkStateError
        If a run is open already.
    CudaUnavailable
        If GPUs are asked for and driver, GPU or a library is missing or fails.
    CudaInitialisedError
        If this process has used a GPU already, because processes that it forks could not use one then.

    See Also
    --------
    synk.close : ends the run.
    synk.restart : brings it back after a death.
    synk.topology : prints on which cores the ranks are.

    Examples
    --------
    >>> synk.fork(2)
    2
    >>> x = pt.matrix("x")
    >>> total = synk.function([x], x.sum())
    >>> print(total(np.ones((10, 3))))
    30.0
    >>> synk.close()
    """
    return _current.fork(
        n_parallel,
        device,
        timeout,
        hosts,
        interface,
        threads=threads,
        bind=bind,
        memory_limit=memory_limit,
        precision=precision,
        cuda_graphs=cuda_graphs,
    )


def close() -> None:
    """End the run: stop the workers and free all shared memory. Also called when the script exits.

    Functions and Data of the run raise `SynkStateError` from then on; `fork` starts a new run. If no run is
    open, it does nothing.

    See Also
    --------
    synk.fork : starts a run.
    synk.is_open : tells whether one is open.

    Examples
    --------
    >>> synk.close()
    >>> synk.is_open()
    False
    """
    _current.close()


def timeout(seconds: float | None) -> AbstractContextManager[None]:
    """Limit the seconds of every command of this thread inside a ``with`` block.

    One call of a function, or of a verb of synk, sends one command to the ranks. A command that exceeds the
    limit raises `SynkTimeout` with every rank's stack, and the run is broken: `restart` or `close` it. The
    computation of this process itself is not interrupted.

    Parameters
    ----------
    seconds : float or None
        None for no limit.

    Returns
    -------
    context manager

    See Also
    --------
    synk.fork : sets a limit for all commands.
    synk.restart : brings the run back.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> total = synk.function([x], x.sum())
    >>> with synk.timeout(60):
    ...     print(total([1.0, 2.0, 3.0]))
    6.0
    """
    return _current.timeout(seconds)


def turn(what: str) -> AbstractContextManager[None]:
    """Reserve the run for this thread in a ``with`` block, to read or set several values as of one moment.

    Calls of other threads, and signal handlers, wait until the block ends; calls of this thread go on. Do not
    wait for another thread in the block. Without a run, only signal handlers wait.

    Parameters
    ----------
    what : str
        The purpose of the block, for error messages.

    Returns
    -------
    context manager

    Raises
    ------
    SynkStateError
        On entering, if this process is not the master, or if it is called within another call, as by a signal
        handler.

    Examples
    --------
    >>> weights = [pytensor.shared(np.zeros(2)), pytensor.shared(np.ones(2))]
    >>> with synk.turn("log"):  # while another thread may train
    ...     print([variable.get_value().tolist() for variable in weights])
    [[0.0, 0.0], [1.0, 1.0]]
    """
    return _current.turn(what)


def timeline(path: str | _PathLike[str]) -> _Timeline:
    """Record what all ranks do, and write a trace when the ``with`` block ends, or at ``close()``.

    The file is in Chrome's Trace Event Format, for https://ui.perfetto.dev and chrome://tracing. It shows for
    each rank its commands, the time in each function, collectives with operation and bytes, the gathering of
    rows selected by an index list, and waiting, as far as these are among the rank's latest 50,000 spans of
    time. Closing the run closes its timeline. `restart` continues it, without what the former workers had
    recorded.

    Parameters
    ----------
    path : str or PathLike
        The file, which is written as a whole at the end.

    Returns
    -------
    Timeline
        A context manager; ``close()`` ends the recording, too. Afterwards ``summary()`` returns the seconds
        of each rank, the slowest rank, and why the others wait for it: ``print`` it.

    Raises
    ------
    SynkStateError
        If no run is open, or another timeline is.
    OSError
        If no file can be made there.

    See Also
    --------
    synk.Function.profile : measures one function node by node.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> total = synk.function([x], x.sum(), name="total")
    >>> with synk.timeline("run.json") as timeline:
    ...     print(total(np.ones(10)))
    10.0
    >>> text = str(timeline.summary())  # print it: seconds of each rank, and why others waited
    >>> os.path.exists("run.json")
    True
    """
    return _current.session("timeline").timeline(path)


def commit(values: Any = None) -> None:
    """Keep the present values of all shared variables on all ranks, so that `restart` can go back to them.

    They are kept in this process's memory, only once if they are equal on all ranks, and replace those of the
    last commit.

    Parameters
    ----------
    values : any, optional
        Values of the script itself, such as the number of the epoch, of which `restart` returns a copy.

    See Also
    --------
    synk.restart : goes back to what was kept.

    Examples
    --------
    >>> w = pytensor.shared(np.zeros(2), name="w")
    >>> step = synk.function([], updates=[(w, w + 1)])
    >>> step()
    >>> synk.commit({"epoch": 3})
    >>> step()
    >>> synk.restart()
    {'epoch': 3}
    >>> w.get_value()
    array([1., 1.])
    """
    _current.session("commit").commit(values)


def restart(
    n_parallel: int | None = None, *, hosts: str | _PathLike[str] | _Sequence[str] | None = None
) -> Any:
    """Bring a broken run back: end its workers at once, and fork new ones.

    Functions, sequences and Data keep working, and Data keep their contents. Every rank gets the values of
    shared variables that it had at the last `commit`; a variable without a commit gets rank 0's present value
    on every rank, with a `SynkWarning`. A run that is not broken goes back, too.

    Parameters
    ----------
    n_parallel : int, optional
        The number of ranks from now on, fewer or more; by default as many as before, and on GPUs never more
        than `fork` made. If it changes, each rank gets the values that were equal on all ranks, its part of
        rows that were scattered, and for random states a stream of its own, made from rank 0's.
    hosts : str, path or sequence of str, optional
        For a run on several machines, those to go on with, given as for `fork`; by default those that still
        answer.

    Returns
    -------
    any
        A copy of the `values` of the last `commit`; None without one.

    Raises
    ------
    SynkStateError
        If no run is open, or if it is called within another call. If the number of ranks changes, but the
        commit has arrays that differ between ranks and are not parts of scattered rows. On GPUs also if the
        fork server, the process that forks workers, has died. Nothing is changed then.
    TypeError, ValueError
        If `n_parallel` is no integer, less than 1, or on GPUs more than `fork` made.
    OSError
        If the system refuses a process; the run stays broken then.

    See Also
    --------
    synk.commit : keeps what a restart goes back to.
    synk.timeout : raises where a command takes too long.

    Examples
    --------
    >>> import signal
    >>> w = pytensor.shared(np.zeros(2), name="w")
    >>> step = synk.function([], updates=[(w, w + 1)])
    >>> step()
    >>> synk.commit()
    >>> os.kill(synk.pids()[1], signal.SIGKILL)
    >>> try:
    ...     step()
    ... except synk.WorkerDied:
    ...     synk.restart()
    >>> step()  # goes on from the commit
    >>> w.get_value()
    array([2., 2.])
    """
    return _current.session("restart").restart(n_parallel, hosts)


def is_open() -> bool:
    """Return whether a run is open in this process; a broken run, which waits for `restart`, is open too.

    Returns
    -------
    bool

    Examples
    --------
    >>> synk.is_open()
    True
    """
    return _current.is_open()


def n_ranks() -> int:
    """Return the number of ranks of the run, this process included.

    Returns
    -------
    int

    Raises
    ------
    SynkStateError
        If no run is open.

    Examples
    --------
    >>> synk.n_ranks()
    2
    """
    return _current.session("n_ranks").n_ranks


def pids() -> tuple[int, ...]:
    """Return the process ids of all ranks, in rank order; the first is this process.

    Returns
    -------
    tuple of int, of length ``n_ranks()``

    Raises
    ------
    SynkStateError
        If no run is open.

    Examples
    --------
    >>> synk.pids()[0] == os.getpid()
    True
    """
    return _current.session("pids").pids()


def topology(file: TextIO | None = None) -> None:
    """Print the CPUs and GPUs of ranks, as a tree of sockets, NUMA nodes with cores and GPUs, and ranks.

    A rank stands under the smallest part of the machine that has all CPUs on which it may run; its line names
    these CPUs and its GPU. In a notebook the tree scrolls where its lines are longer than the page.

    Parameters
    ----------
    file : text file, optional
        By default standard output.

    Raises
    ------
    SynkStateError
        If no run is open.

    Examples
    --------
    >>> import io
    >>> text = io.StringIO()
    >>> synk.topology(text)  # without a file, it is printed
    >>> "ranks 0" in text.getvalue() or "rank 0" in text.getvalue()
    True
    """
    text = _current.session("topology").topology()
    if file is None and _in_notebook():
        _Area(text)
    else:
        print(text, file=file)


# --- data and functions ----------------------------------------------------------------------------


def data(
    value: Any = None,
    var: Any = None,
    *,
    dtype: Any = None,
    ndim: int | None = None,
    shape: Any = None,
    minibatch: bool = False,
    force_cast: bool = False,
    oversize: float = 1,
    name: str | None = None,
) -> Data:
    """Put values into shared memory, or let ranks read them from a file, as input of functions.

    A `numpy.memmap`, such as ``np.load(path, mmap_mode="r")``, or the path of a .npy file gives Data that
    stays in the file: nothing is copied, and every rank reads its rows from the system's page cache, so the
    file may be larger than memory. Writes go to the file, if it was opened with ``mmap_mode="r+"``; paths are
    opened read-only. The dtype is the file's, and the shape may shrink, but not
    grow beyond the file's.

    Parameters
    ----------
    value : array_like, str or PathLike, optional
        Values to store, or the path of a .npy file.
    var : PyTensor variable, optional
        Gives dtype and number of dimensions.
    dtype : dtype, optional
        By default that of ``var`` or ``value``.
    ndim : int, optional
        By default that of ``var``, ``value`` or ``shape``.
    shape : tuple of int, optional
        Allocate this shape if no value is given; the contents are zero.
    minibatch : bool
        Whether row i belongs to the i-th row that ``batch`` selects, instead of to row i of the other inputs.
    force_cast : bool
        Whether to cast ``value`` even if that loses precision.
    oversize : float, 1 to 2
        Allocate this multiple of the memory needed, as room to grow.
    name : str, optional

    Returns
    -------
    Data

    Raises
    ------
    TypeError
        If dtype or number of dimensions are not known, or the value does not fit them.
    ValueError
        If an option means nothing here: ``shape`` beside a value, ``force_cast`` without one.
    OSError, ValueError
        If a file cannot be opened, or its array cannot be read in place: not in C order, cut, opened
        copy-on-write.
    SharedMemoryFull
        If shared memory has no room.

    See Also
    --------
    synk.Function.build_inputs : makes Data for all inputs of a function.

    Examples
    --------
    >>> images = synk.data(np.zeros((100, 8)), name="images")
    >>> images
    <synk.Data 'images': float64, shape (100, 8), capacity 100 rows>
    >>> images[0] = 1.0  # read and written like a NumPy array

    A file that is larger than memory stays where it is:

    >>> np.save("train.npy", np.arange(12.0).reshape(6, 2))
    >>> rows = synk.data("train.npy")
    >>> x = pt.matrix("x")
    >>> print(synk.function([x], x.sum())(rows, batch=[0, 5]))
    22.0
    """
    return _current.session("data").data(
        value,
        var,
        dtype=dtype,
        ndim=ndim,
        shape=shape,
        minibatch=minibatch,
        force_cast=force_cast,
        oversize=oversize,
        name=name,
    )


def function(
    inputs: Any,
    outputs: Any = None,
    bcast_inputs: Any = None,
    *,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Any = None,
    name: str | None = None,
    mode: Any = None,
    on_unused_input: str = "raise",
    check: str | None = None,
) -> Function:
    """Build a function that runs on all ranks, each on its share of the rows.

    Parameters
    ----------
    inputs : list of variable
        Scattered: the rows (axis 0) are split over the ranks.
    outputs : variable, (variable, operation), or list of those, optional
        The results. Without an operation, each is the value that one process computes from all rows. With
        one of "avg", "sum", "prod", "min", "max", "gather" and None, each rank computes it from its own rows,
        and the operation combines the values of slices and ranks; "avg" weights them by their rows, and None
        is the value of rank 0's last slice. A `SynkWarning` names an operation that is known to give another
        value than one process. A prefix ``"c_"`` is accepted and ignored.
    bcast_inputs : list of variable, optional
        Broadcast: every rank gets all of them.
    updates : list of (shared variable, new value) or (..., operation), or dict, optional
        Applied once per call. Without an operation, every rank gets the new value that one process computes.
        With one, each rank computes it from its own rows, and the operation combines the values of its
        slices.
    givens : list of (variable, replacement) or dict, optional
        Substitutions, which are made first.
    sliceable_shareds : list of shared variable, optional
        Shared variables whose rows ``batch_s`` and ``num_slices`` select from.
    name : str, optional
        The function's name in error messages.
    mode : pytensor Mode, or its name, optional
        By default the mode of the device. "debug" is that mode with a check of every node. Modes of PyTensor
        compute on the host, and must run one Op at a time, as "FAST_COMPILE" does. Modes that compile the
        graph as a whole ("C", "NUMBA", and with it "FAST_RUN") are refused, since ranks cannot exchange
        values in the middle of it.
    on_unused_input : {"raise", "ignore"}
    check : {"first"}, optional
        Compare the first call with one process: this process also computes the graph as it was written, from
        all rows that the call selects. A `SynkError` names outputs, and updates without an operation, that
        differ by more than rounding. Not available for graphs that draw random numbers, nor for sliceable
        variables.

    Returns
    -------
    Function

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong; the message names the argument and the variable.

    See Also
    --------
    synk.sequence : joins functions and collectives into one command.
    synk.extensions.train.make_train_function : makes a training step.

    Examples
    --------
    >>> x, w = pt.matrix("x"), pt.vector("w")
    >>> f = synk.function([x], [(x @ w).mean(), (x.max(), "max")], bcast_inputs=[w])
    >>> mean, largest = f(np.arange(6.0).reshape(3, 2), [1.0, 1.0])
    >>> print(mean, largest)
    5.0 5.0
    """
    return _current.session("function").function(
        inputs,
        outputs,
        bcast_inputs,
        updates,
        givens,
        sliceable_shareds,
        mode,
        on_unused_input,
        name=name,
        check=check,
    )


def sharded_update(
    update: Function, flat: Any, *, required: bool = False, name: str | None = None
) -> Function:
    """Make a function that adds up a vector over the ranks, and of whose updates each rank computes a part.

    It does what ``synk.sequence((synk.all_reduce, flat, "sum"), update)`` does. Where it can, the updated
    variables live once in the memory of the machine, one behind the other, and each rank adds up its part of
    all ranks' vectors and updates the same part of the variables: no rank computes what another does, and
    memory holds parameters and the state of the rule once. It can if the updates are elementwise along
    ``flat``, and all ranks compute on cores of one machine. Else it is that sequence; ``explain`` says why.

    Other functions and collectives may use and change the variables as before. What changes them by other
    means gives each rank an array of its own first, and the next call lays them out again.

    Parameters
    ----------
    update : Function
        Made by `synk.function`, without scattered inputs and outputs. Its updates read ``whole(flat)``, the
        sum. They are elementwise along it if each reads the piece ``whole(flat)[i:j].reshape(shape)`` of its
        variable, the last element ``whole(flat)[-1]``, numbers, sums over all elements of what is elementwise
        in ``whole(flat)[:-1]``, and variables that are updated along the same piece; and if the rule is the
        same for all pieces.
    flat : shared vector
        Per rank: each rank has its part of the sum. Of float32 or float64, or every rank updates all.
    required : bool
        Whether to raise where every rank would have to update all variables.
    name : str, optional

    Returns
    -------
    Function
        Its inputs are those of ``update``.

    Raises
    ------
    TypeError
        If ``update`` is no such function, or ``flat`` no such vector.
    ValueError
        If ``required``, and the update cannot be divided among the ranks; the message says why.

    See Also
    --------
    synk.extensions.train.make_train_function : makes its update so.

    References
    ----------
    Rajbhandari, Rasley, Ruwase and He (2020), "ZeRO: memory optimizations toward training trillion parameter
    models", arXiv:1910.02054: there with a copy of the parameters for each rank.

    Examples
    --------
    >>> from synk.ops import whole
    >>> flat, p = pytensor.shared(np.zeros(4), name="flat"), pytensor.shared(np.ones(3), name="p")
    >>> x = pt.vector("x")
    >>> gradient = synk.function([x], updates=[(flat, pt.ones(4) * x.sum(), "sum")])
    >>> g = whole(flat, otherwise="all-reduce it")[0:3]
    >>> update = synk.sharded_update(synk.function([], updates=[(p, p - 0.1 * g)]), flat)
    >>> gradient([1.0, 2.0, 3.0])
    >>> update()
    >>> p.get_value().round(3).tolist()
    [0.4, 0.4, 0.4]
    """
    return _current.session("sharded_update").sharded_update(update, flat, required, name)


def sequence(*items: Any, name: str | None = None) -> Function:
    """Join functions and collectives into one command on every rank.

    Parameters
    ----------
    *items : Function, functools.partial or tuple
        Functions, and collectives as ``partial(synk.all_reduce, variable, op="sum")`` or
        ``(synk.all_reduce, variable, "sum")``.
    name : str, optional

    Returns
    -------
    Function
        Its inputs are those of the functions, each once; its outputs are those of the functions, in order.

    Raises
    ------
    TypeError, ValueError
        If an item is neither a function nor a collective, or its arguments are wrong.

    See Also
    --------
    synk.function : makes the functions.

    Examples
    --------
    >>> x, total = pt.vector("x"), pytensor.shared(0.0, name="total")
    >>> add = synk.function([x], updates=[(total, x.sum(), "sum")])
    >>> step = synk.sequence(add, (synk.all_reduce, total, "sum"))
    >>> step([1.0, 2.0, 3.0])
    >>> print(synk.get_value(1, total))
    6.0
    """
    return _current.session("sequence").sequence(items, name)


def on_ranks(
    make: Callable[..., Callable[..., _Returned]], *arguments: Any, changes: Any = ()
) -> OnRanks[_Returned]:
    """Make a Python object on every rank, and return a handle that calls the objects of all ranks.

    It is for work that is no graph, and that goes on between commands: samplers, readers, servers. An object
    should start long work in a thread and return: the next call can ask for the progress, and notices if a
    rank has died.

    Parameters
    ----------
    make : callable
        Called as ``make(rank, *arguments)`` on every rank; returns a callable, which stays there for as long
        as the handle exists. Functions and classes that the script defines are sent by value, with the
        globals that they read; those of a module, by their names.
    *arguments
        Anything that can be pickled. Functions of `synk.function` arrive as functions of the rank alone:
        called with all inputs whole, they return a list of all outputs. ``function.bound(*inputs)`` returns a
        function without arguments that makes this call on the same arrays, with their present contents; it
        takes less time. `Data` arrive as arrays in shared memory, shared variables as those of the rank, with
        ``get_value(borrow=False)`` and ``set_value(value)``. Code that reads one of these in another way, as
        a global, say, is refused: on rank 0 it would get the script's own object.
    changes : list of shared variable, optional
        The variables that the objects set or write to; others they may only read. After `on_ranks`, and after
        each call, these are per rank, and so are variables that functions among the arguments update, which
        need not be listed. A function that needs them equal on all ranks is refused until `all_reduce` or
        `broadcast` has made them equal.

    Returns
    -------
    OnRanks
        The handle: a call passes its arguments to the object of each rank, and returns the list of their
        results.

    Raises
    ------
    TypeError
        If an argument, or code, cannot be pickled; or if code reads a function of `synk.function`, `Data` or
        a shared variable that is no argument.
    RemoteError
        If ``make`` raised.

    Examples
    --------
    >>> class Counter:
    ...     def __init__(self, rank, start):
    ...         self.count = start + 10 * rank
    ...
    ...     def __call__(self, n):
    ...         self.count += n
    ...         return self.count
    >>> counters = synk.on_ranks(Counter, 5)
    >>> counters(1)  # the result of each rank
    [6, 16]
    >>> counters(1)
    [7, 17]
    """
    return _current.session("on_ranks").on_ranks(make, arguments, changes)


def distribute(num_slices: int = 1) -> None:
    """Send all functions to the workers and compile them on all ranks at the same time.

    Calling it is optional, any number of times: a function is sent and compiled when it first runs. The first
    call with ``num_slices`` above 1 compiles a second program, which accumulates updates over slices.

    Parameters
    ----------
    num_slices : int, optional
        Above 1, the second program is compiled now, too; it serves any number of slices.

    Raises
    ------
    TypeError, ValueError
        If ``num_slices`` is not an integer, or below 1.

    See Also
    --------
    synk.function : makes what is compiled.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> total = synk.function([x], x.sum())
    >>> synk.distribute()  # compiled now, on all ranks, instead of in the first call
    >>> print(total([1.0, 2.0]))
    3.0
    """
    _current.session("distribute").distribute(num_slices)


# --- collectives on shared variables ---------------------------------------------------------------
# Each takes one shared variable or a list of them, and returns a single result or a tuple.

broadcast = _verb(Broadcast)
scatter = _verb(Scatter)
gather = _verb(Gather)
all_gather = _verb(AllGather)
reduce = _verb(Reduce)
all_reduce = _verb(AllReduce)
reduce_scatter = _verb(ReduceScatter)
all_to_all = _verb(AllToAll)
check_finite = _verb(CheckFinite)
set_value = _verb(SetValue)
get_value = _verb(GetValue)
get_lengths = _verb(GetLengths)
get_shapes = _verb(GetShapes)


def per_rank(variable: Any) -> _Cause | None:
    """Return the cause that has made the values of a shared variable differ between ranks.

    No rank is asked: synk keeps a record of what functions, collectives and ``set_value`` in the script have
    made of each variable. It knows nothing of writes to an array that the script holds.

    Parameters
    ----------
    variable : shared variable

    Returns
    -------
    (what, kind) or None
        None if the ranks have equal values, and for random states, which always differ between ranks.
        ``what`` names the cause, such as ``"synk.scatter"``. ``kind`` is ``"rows"`` if each rank has its part
        of the rows of one array, in rank order; ``"first"`` if only rank 0's value was changed; ``"left"`` if
        they differed in a run that is closed, of which rank 0's value is left; else ``"own"``. In a run of
        one rank, it is what it would be on several.

    Examples
    --------
    >>> table = pytensor.shared(np.zeros((4, 2)), name="table")
    >>> synk.scatter(table, np.ones((4, 2)))
    >>> synk.per_rank(table).kind
    'rows'
    >>> synk.all_gather(table)
    >>> print(synk.per_rank(table))
    None
    """
    return _current.per_rank(variable)
