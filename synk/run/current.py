"""Which run is open: the one permitted global.

fork -> Session ... session(verb) -> close
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from synk.processes.signals import hold_signals
from synk.run.arguments import checked_devices, checked_timeout
from synk.run.fork_source import ForkSource
from synk.run.session import Session
from synk.values.errors import SynkStateError

_session: Session | None = None
_source = ForkSource()  # of all runs, one after the other
_forking = threading.RLock()  # whoever forks a run


def session(what: str) -> Session:
    """Return the run that is open.

    Raises
    ------
    SynkStateError
        If there is none.
    """
    if _session is None:
        raise SynkStateError(f"{what}: no run is open; call synk.fork() first")
    _session.check_open(what)
    return _session


def is_open() -> bool:
    """Return whether a run is open, and this process its master."""
    return _session is not None and _session.is_open()


def turn(what: str) -> AbstractContextManager[Any]:
    """Keep a turn; see `synk.turn`."""
    return hold_signals() if _session is None else _session.keep_turn(what)


def fork(n_parallel: int | None, device: str | None, timeout: float | None, **options: Any) -> int:
    """Start a run; see `synk.fork`. The options are those of `checked_devices`."""
    with _alone("fork"):
        return _fork(n_parallel, device, timeout, **options)


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Refuse a call while another thread forks; waiting for it would never end in a fork of this process."""
    if not _forking.acquire(blocking=False):
        raise SynkStateError(f"{what}: another thread is in the middle of synk.fork()")
    try:
        yield
    finally:
        _forking.release()


def _fork(n_parallel: int | None, device: str | None, timeout: float | None, **options: Any) -> int:
    global _session
    if _session is not None:
        _session.check_open("fork")  # in a process that somebody forked of the master, this says so
        raise SynkStateError("fork: a run is open already; synk.close() it first")
    seconds = checked_timeout(timeout)
    devices = checked_devices(n_parallel, device, **options)
    if device != "cpu" and devices.n_ranks > 1:
        _source.check("fork", devices)
    try:
        with hold_signals():  # so that what an interrupt finds can be closed
            # PyTensor imports this, and SciPy with it, when it compiles for the first time: here it does so
            # once, and all ranks share the memory.
            import_module("pytensor.sparse")
            _source.prepare(devices)
            _session = Session(devices, seconds, _source)
            try:
                _session.start()
            except BaseException:
                _session = None
                raise
    except BaseException:
        close()
        raise
    return devices.n_ranks


def close() -> None:
    """End the run; see `synk.close`."""
    global _session
    session = _session
    if session is None:
        return
    if session.own():
        with _alone("close"):  # half a run cannot be closed
            pass
    session.close()
    if _session is session:  # and no later one, of another thread
        _session = None


def dismiss_fork_server() -> None:
    """End what would fork the workers of later runs on GPUs, and of a restart of this one."""
    _source.close()


atexit.register(dismiss_fork_server)  # the last comes first
atexit.register(close)
