"""Functions as users call them, made by `synk.function` and `synk.sequence`.

    Function.__call__ -> the last command again, if the call repeats it -> results
                      -> effects, which sends a new function -> prepare: checks, staging -> compile -> run

All arguments are checked before anything is sent, so a call that is refused leaves the run unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from synk.compile.observe.profile import Profile
from synk.compile.observe.report import Report
from synk.run.arrays.data import Data
from synk.run.arrays.making import make_data
from synk.run.arrays.owner import Owner
from synk.run.functions.computation import Computation
from synk.run.functions.prepared import PreparedCommand
from synk.run.functions.selections import CallOptions, as_input
from synk.run.functions.signature import Signature, check_subset
from synk.run.rank.failures import shorten
from synk.values.notebooks import preformatted

# What completion offers of a function.
FOR_USERS = {
    *("as_pytensor", "as_theano", "build_inputs", "explain", "profile"),
    *("inputs", "name", "parts", "returns", "state"),
}


class Function(Computation):
    """A function on all ranks, made by `synk.function` or `synk.sequence`.

    Attributes
    ----------
    state : tuple of shared variable
        For a training step: the shared variables that it reads and updates, which a checkpoint must save.
    parts : TrainParts or None
        For a training step: its functions, and the all-reduce between them.
    returns : {"list", "single", "none"}
        Whether a call returns a list of values, a single value or None.

    See Also
    --------
    synk.function : makes it.

    Examples
    --------
    >>> x = pt.vector("x")
    >>> f = synk.function([x], x.sum(), name="total")
    >>> f
    <synk.Function 'total' of ('x')>
    >>> print(f([1.0, 2.0]))
    3.0
    """

    state: tuple[Any, ...] = ()
    parts: Any = None

    def __dir__(self) -> list[str]:
        """List what is for users, and not what other parts of synk call."""
        return [name for name in super().__dir__() if name.startswith("__") or name in FOR_USERS]

    def __init__(self, owner: Owner, name: str, inputs: Sequence[Any], returns: str):
        self._owner = owner
        self.returns = returns
        self._signature = Signature(name, inputs)
        self._turn = owner.turn(name)
        self._last: PreparedCommand | None = None  # the last command, which a call may send again

    @property
    def name(self) -> str:
        """Name of the function in messages."""
        return self._signature.name

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Input variables: scattered ones, then broadcast ones."""
        return self._signature.inputs

    def __repr__(self) -> str:
        return f"<synk.Function {self._signature}>"

    def _repr_html_(self) -> str:
        """Return for a notebook what `explain` prints."""
        return preformatted("\n".join(self.explanation()))

    def __call__(
        self,
        *args: Any,
        output_subset: Sequence[int] | None = None,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        next_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run on all ranks and return the reduced outputs.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            Inputs in order (scattered ones, then broadcast ones) or by name. Arrays are copied
            to shared memory on the way, only the selected rows of them.
        output_subset : list of int, optional
            Outputs to return, in this order; all updates still run.
        batch : int, slice, or 1-D sequence of int, optional
            Rows of the scattered inputs, selected before scattering. An int takes the first so
            many.
        batch_s : slice, 1-D sequence of int, or list of those, optional
            Rows of the sliceable shared variables, selected from each rank's own shard: one
            selection for all, or a list with one for each rank.
        num_slices : int
            Compute over so many slices on each rank, one after the other, to save memory.
        next_batch : as ``batch``, optional
            The ``batch`` of the next call, if it will be given the same Data: the ranks gather its rows
            beside the computation of this call. It saves time where the script does something else between
            calls, or cores are idle; where all of them compute, it saves none. It costs memory for one more
            batch. What any other next call does is not changed by it. Rows are read during this call: between
            the two, write to the Data by its own methods (``data[...] = new``), not through an array that
            was taken from it before, or leave ``next_batch`` out.

        Returns
        -------
        array, list of array, or None
            As the outputs were given: an array for a single one, a list for a list.

        Raises
        ------
        IndexError, TypeError, ValueError
            If an argument is wrong; no rank has run anything then.
        RemoteError
            If a rank raised. The run stays usable.
        WorkerDied
            If a worker died. The run is broken.

        Examples
        --------
        >>> x = pt.vector("x")
        >>> total = synk.function([x], x.sum())
        >>> values = synk.data(np.arange(10.0))
        >>> print(total(values), total(values, batch=3), total(values, batch=[0, 9], num_slices=2))
        45.0 3.0 9.0
        """
        try:
            with self._turn:
                last = self._last
                plain = batch_s is None and next_batch is None and output_subset is None and not kwargs
                if last is not None and plain:
                    rows = last.rows(args, batch, num_slices)
                    if rows is not None:
                        return self.as_written(last.run(self._owner, *rows))
                options = CallOptions(batch, batch_s, num_slices, next_batch)
                subset = check_subset(output_subset, self.n_results)
                options.check(self.name, self.can_batch(), self.can_batch_s())
                values = self._run_anew(self._signature.order(args, kwargs), options)
            return self.as_written(values if subset is None else [values[output] for output in subset])
        except Exception as error:
            shorten(error)
            raise

    def _run_anew(self, inputs: Sequence[Any], options: CallOptions) -> list[Any]:
        """Prepare a call and run it; keep its command if the next call may repeat it."""
        self._last = None
        effects = self.effects()
        self._owner.memory.per_rank.after(effects)  # of all commands, before the first one is prepared
        values: list[Any] = []
        done = 0
        for prepared in self.prepare(inputs, options):
            stop = done + len(prepared)
            command = PreparedCommand(prepared, options.num_slices, effects[done:stop])
            self._owner.functions.compile(command.programs())
            values += command.run(self._owner, *command.selected)
            done = stop
        if len(prepared) == done and options.batch_s is None and options.next_batch is None:
            command.keep(self._owner.memory)
            self._last = command
        return values

    def as_pytensor(self, *args: Any, **kwargs: Any) -> Any:
        """Run on rank 0 alone, on all rows, as one process would; updates change rank 0's variables only.

        Parameters
        ----------
        *args, **kwargs : Data or array_like
            As in a call.

        Returns
        -------
        array, list of array, or None
            As of a call.

        Raises
        ------
        ValueError
            If the function reads a shared variable that is per rank.

        Examples
        --------
        >>> x = pt.vector("x")
        >>> spread = synk.function([x], x.std())
        >>> values = np.arange(5.0)
        >>> bool(np.isclose(spread(values), spread.as_pytensor(values)))
        True
        """
        values = [
            as_input(variable, value.data if isinstance(value, Data) else value)
            for variable, value in zip(self.inputs, self._signature.order(args, kwargs), strict=True)
        ]
        with self._owner.turn(self.name):
            self.check_alone(set())
            return self.as_written(self.run_alone(values))

    as_theano = as_pytensor

    def profile(self, *args: Any, n_calls: int = 10, **kwargs: Any) -> Report:
        """Call the function on all ranks, and measure what rank 0 does, node by node.

        The calls are real: updates are applied ``n_calls + 1`` times, since a first call compiles the
        programs anew and measures their memory. Only rank 0 is measured; the time of collectives includes its
        waiting for other ranks. Calls without a profile are not slowed down.

        Parameters
        ----------
        *args, **kwargs
            As in a call.
        n_calls : int
            The number of calls to time.

        Returns
        -------
        Report
            ``print`` it; ``rows`` and ``ops`` are plain data, ``save_trace(path)`` writes a file for
            chrome://tracing.

        Raises
        ------
        TypeError
            If the function was given a mode that makes no array programs.

        See Also
        --------
        synk.timeline : shows what all ranks do.

        Examples
        --------
        >>> x = pt.matrix("x")
        >>> f = synk.function([x], (x @ x.T).sum())
        >>> report = f.profile(np.ones((8, 8)), n_calls=2)
        >>> text = str(report)  # print it: seconds of each node
        >>> len(report.rows) > 0
        True
        """
        if n_calls < 1:
            raise ValueError(f"n_calls={n_calls} measures nothing; time one call or more")
        profile = Profile()
        with self._owner.functions.profiled(profile):
            with profile.memory():
                self(*args, **kwargs)
            for _ in range(n_calls):
                with profile.call(self.name):
                    self(*args, **kwargs)
        return profile.report(self.name)

    def build_inputs(
        self,
        *args: Any,
        force_cast: bool = False,
        oversize: float = 1,
        minibatch: bool | Sequence[bool] = False,
        **kwargs: Any,
    ) -> Any:
        """Put values into shared memory, as `Data` for the inputs of this function.

        Parameters
        ----------
        *args, **kwargs : array_like
            One per input, in order or by name.
        force_cast, oversize, minibatch
            As for `synk.data`; ``minibatch`` may be a list with one entry per input.

        Returns
        -------
        Data, or tuple of Data
            A single one for a single input.

        See Also
        --------
        synk.data : makes one.

        Examples
        --------
        >>> x, w = pt.matrix("x"), pt.vector("w")
        >>> f = synk.function([x], (x @ w).sum(), bcast_inputs=[w])
        >>> x_data, w_data = f.build_inputs(np.ones((4, 2)), [1.0, 2.0])
        >>> print(f(x_data, w_data))
        12.0
        """
        self._owner.check_open("build_inputs")
        values = self._signature.order(args, kwargs)
        flags = [minibatch] * len(values) if isinstance(minibatch, bool) else list(minibatch)
        if len(flags) != len(values):
            raise ValueError(f"minibatch has {len(flags)} entries for {len(values)} inputs")
        make = partial(make_data, self._owner, force_cast=force_cast, oversize=oversize)
        made = tuple(
            make(value, variable, minibatch=flag, name=variable.name)
            for variable, value, flag in zip(self.inputs, values, flags, strict=True)
        )
        return made[0] if len(made) == 1 else made

    def as_written(self, values: list[Any]) -> Any:
        """Return the values of a call in the form in which the outputs were given: a list for a list."""
        if self.returns == "none":
            return None
        return values[0] if self.returns == "single" and len(values) == 1 else values
