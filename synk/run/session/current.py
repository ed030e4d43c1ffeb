"""The run that is open, in the one module global that synk permits itself.

fork -> Turns, Session ... session(verb) -> close
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytensor.compile.sharedvalue import SharedVariable

from synk.run.arrays.per_rank import Cause, left_cause
from synk.run.device import Devices
from synk.run.launch.fork_arguments import checked_devices, checked_timeout, with_environment
from synk.run.launch.fork_source import ForkSource
from synk.run.on_machines.job import Jobs
from synk.run.session.session import Session
from synk.run.session.turns import Turns
from synk.transport.machines.hosts import refuse_under_mpi, under_mpi
from synk.transport.processes.signals import hold_signals
from synk.values.errors import SynkStateError

if TYPE_CHECKING:
    from synk.run.on_machines.joined import JoinedWorld

_turns: Turns | None = (
    None  # of the open run; a forked worker inherits them, and they tell that it is no master
)
_session: Session | None = None
_source = ForkSource()  # forks the workers of all runs, one after the other
_world: JoinedWorld | None = None  # the MPI job of all runs, if a launcher has started this script
_forking = threading.RLock()  # held by the thread that is inside `fork`


def session(what: str) -> Session:
    """Return the run that is open; if there is none, raise SynkStateError, which names the call ``what``."""
    if _turns is not None:
        _turns.check_open(what)
    if _session is None:
        raise SynkStateError(f"{what}: no run is open; call synk.fork() first")
    return _session


def is_open() -> bool:
    """Return whether a run is open, and this process its master."""
    return _session is not None and _turns is not None and _turns.is_open()


def per_rank(variable: Any) -> Cause | None:
    """Return the cause that has made a variable per rank; see `synk.per_rank`."""
    if not isinstance(variable, SharedVariable):
        raise TypeError(f"expected a shared variable, got {variable!r}")
    here = session("per_rank").per_rank_cause(variable) if _turns is not None else None
    return here or left_cause(variable)


def turn(what: str) -> AbstractContextManager[Any]:
    """Return the context of `synk.turn`."""
    return hold_signals() if _turns is None else _turns.keep(what)


def timeout(seconds: float | None) -> AbstractContextManager[None]:
    """Return the context of `synk.timeout`."""
    session("timeout")
    assert _turns is not None
    return _turns.timeout(checked_timeout(seconds))


def fork(*arguments: Any, **options: Any) -> int:
    """Start a run; see `synk.fork`. The arguments are those of `_fork`."""
    with _no_concurrent_fork("fork"):
        return _fork(*arguments, **options)


@contextmanager
def _no_concurrent_fork(what: str) -> Iterator[None]:
    """Raise SynkStateError if another thread is inside `fork`.

    Waiting for it instead would never end in a process forked meanwhile, in which that thread does not exist.
    """
    if not _forking.acquire(blocking=False):
        raise SynkStateError(f"{what}: another thread is in the middle of synk.fork()")
    try:
        yield
    finally:
        _forking.release()


def _fork(
    n_parallel: int | None,
    device: str | None,
    timeout: float | None,
    hosts: Any,
    interface: str | None,
    **options: Any,
) -> int:
    """Start a run; ``options`` are those of `checked_devices`. No other thread is inside."""
    global _turns, _session
    if _turns is not None:
        _turns.check_open("fork")  # raises in a child process of the master
        raise SynkStateError("fork: a run is open already; synk.close() it first")
    seconds = checked_timeout(timeout)
    n_parallel, hosts, interface = with_environment(n_parallel, hosts, interface)
    devices = checked_devices(n_parallel, device, **options)
    if device != "cpu" and devices.n_ranks > 1:
        _source.check("fork", devices)
    try:
        with hold_signals():  # an interrupt must not find half a run, which could not be closed
            # PyTensor imports this, and with it SciPy, when it first compiles. Imported before the fork, it
            # is in memory once for all ranks.
            import_module("pytensor.sparse")
            _source.prepare(devices)
            jobs = _jobs(hosts, n_parallel, devices, interface)
            _turns = Turns(seconds)
            try:
                _session = Session(devices, _turns, _source, jobs)
            except BaseException:
                _turns = None
                raise
    except BaseException:
        close()
        raise
    return _session.n_ranks


def _jobs(hosts: Any, n_parallel: int | None, devices: Devices, interface: str | None) -> Jobs | None:
    """Return the source of processes on other machines, or None for a run on this machine alone.

    If a launcher of MPI has started this script on several machines, it returns on the first one only: the
    others follow that one until the script ends.
    """
    global _world
    # The imports are here because most runs have one machine and need none of this.
    if hosts is None and under_mpi():
        from synk.run.on_machines.joined import joined_world

        _world = _world or joined_world(interface)
    if not devices.on_host and not (hosts is None and _world is None):
        raise NotImplementedError(
            "fork: several machines compute on cores so far, and GPUs on one machine: pass device='cpu'"
        )
    if hosts is not None:
        refuse_under_mpi(hosts)
        from synk.run.on_machines.started_jobs import StartedJobs

        return StartedJobs(hosts, n_parallel, devices.n_ranks, interface)
    if _world is not None:
        _world.n = n_parallel
        if not _world.is_first:
            _world.follow()
    return _world


def close() -> None:
    """End the run; see `synk.close`."""
    global _turns, _session
    turns = _turns
    if turns is None:
        return
    if turns.is_master():
        with _no_concurrent_fork("close"):  # half a run cannot be closed
            pass
    if _session is not None:
        _session.close()
    if _turns is turns:  # and no later ones, of another thread
        _turns = _session = None


def dismiss_fork_server() -> None:
    """End the fork server, if there is one, which would fork the workers of restarts and of later runs."""
    _source.close()


def end_mpi_job() -> None:
    """End the processes that a launcher of MPI has started on the other machines with this script."""
    if _world is not None:
        _world.end()


# Run in reverse order: the run must be closed before the MPI job, or its leaders would not call for the end.
atexit.register(end_mpi_job)
atexit.register(dismiss_fork_server)
atexit.register(close)
