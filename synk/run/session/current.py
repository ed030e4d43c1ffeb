"""Hold the run that is open: the one permitted global.

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

from synk.run.arrays.per_rank import Since, left_since
from synk.run.device import Devices
from synk.run.launch.fork_arguments import checked_devices, checked_timeout, completed
from synk.run.launch.fork_source import ForkSource
from synk.run.on_machines.job import Jobs
from synk.run.session.session import Session
from synk.run.session.turns import Turns
from synk.transport.machines.hosts import refuse_under_mpi, under_mpi
from synk.transport.processes.signals import hold_signals
from synk.values.errors import SynkStateError

if TYPE_CHECKING:
    from synk.run.on_machines.joined import JoinedWorld

_turns: Turns | None = None  # of the run; a worker finds them too, and so knows that it is not the master
_session: Session | None = None
_source = ForkSource()  # of all runs, one after the other
_world: JoinedWorld | None = None  # likewise
_forking = threading.RLock()  # whoever forks a run


def session(what: str) -> Session:
    """Return the run that is open; raise SynkStateError, which says ``what`` was asked, if there is none."""
    if _turns is not None:
        _turns.check_open(what)
    if _session is None:
        raise SynkStateError(f"{what}: no run is open; call synk.fork() first")
    return _session


def is_open() -> bool:
    """Return whether a run is open, and this process its master."""
    return _session is not None and _turns is not None and _turns.is_open()


def per_rank(variable: Any) -> Since | None:
    """Return the cause that has made a variable per rank; see `synk.per_rank`."""
    if not isinstance(variable, SharedVariable):
        raise TypeError(f"expected a shared variable, got {variable!r}")
    here = session("per_rank").per_rank_since(variable) if _turns is not None else None
    return here or left_since(variable)


def turn(what: str) -> AbstractContextManager[Any]:
    """Keep a turn; see `synk.turn`."""
    return hold_signals() if _turns is None else _turns.keep(what)


def timeout(seconds: float | None) -> AbstractContextManager[None]:
    """Give commands so many seconds; see `synk.timeout`."""
    session("timeout")
    assert _turns is not None
    return _turns.timeout(checked_timeout(seconds))


def fork(*arguments: Any, **options: Any) -> int:
    """Start a run; see `synk.fork`. The arguments are those of `_fork`."""
    with _alone("fork"):
        return _fork(*arguments, **options)


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Refuse a call while another thread forks; waiting for it would never end in a fork of this process."""
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
    """Start a run, while no other thread does; the options are those of `checked_devices`."""
    global _turns, _session
    if _turns is not None:
        _turns.check_open("fork")  # in a process that somebody forked of the master, this says so
        raise SynkStateError("fork: a run is open already; synk.close() it first")
    seconds = checked_timeout(timeout)
    n_parallel, hosts, interface = completed(n_parallel, hosts, interface)
    devices = checked_devices(n_parallel, device, **options)
    if device != "cpu" and devices.n_ranks > 1:
        _source.check("fork", devices)
    try:
        with hold_signals():  # so that what an interrupt finds can be closed
            # PyTensor imports this, and SciPy with it, when it compiles for the first time: here it does so
            # once, and all ranks share the memory.
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
    """Return the source of processes on other machines; None where there is only this one.

    On all machines but the first, of those on which a launcher has started this script, it does not return.
    """
    global _world
    # Imported here, because most runs have one machine, and need nothing of what others do.
    if hosts is None and under_mpi():
        from synk.run.on_machines.joined import joined_world

        _world = _world or joined_world(interface)
    if devices.gpus and not (hosts is None and _world is None):
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
        with _alone("close"):  # half a run cannot be closed
            pass
    if _session is not None:
        _session.close()
    if _turns is turns:  # and no later ones, of another thread
        _turns = _session = None


def dismiss_fork_server() -> None:
    """End what would fork the workers of later runs on GPUs, and of a restart of this one."""
    _source.close()


def end_world() -> None:
    """End what a launcher has started on the other machines beside this script."""
    if _world is not None:
        _world.end()


atexit.register(end_world)  # the last comes first: leaders of a run that is open do not call for its end
atexit.register(dismiss_fork_server)
atexit.register(close)
