"""Every error that synk raises on purpose.

Each says what was wrong, with the value, and what to do. Where a built-in exception has the
same meaning the error is one of those too, so plain ``except`` clauses keep working.

Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class SynkError(Exception):
    """Base of all errors of this package."""


class SynkStateError(SynkError, RuntimeError):
    """A call that the present state does not allow: before ``fork``, after ``close``, in a worker."""


class CudaInitialisedError(SynkStateError):
    """CUDA was initialised before ``fork``; child processes cannot use it."""


class SharedMemoryFull(SynkError, MemoryError):
    """The shared-memory file system has no room for a segment."""


class CollectiveMismatch(SynkError, ValueError):
    """Ranks entered a collective with different operations, dtypes or shapes."""


class SynkTimeout(SynkError, TimeoutError):
    """A command did not end before its deadline."""


class SynkWarning(UserWarning):
    """Something is allowed but probably not what was meant."""


class WorkerDied(SynkError, RuntimeError):
    """A worker process ended without being told to.

    Attributes
    ----------
    rank, pid : int
    cause : str
        ``"signal SIGKILL"`` or ``"exit code 3"``.
    phase : str
        What the worker was doing: ``"idle"``, ``"compiling"``, ``"computing"`` or ``"in a collective"``.
    function : str
        The command that was running, or ``"no command"``.
    """

    def __init__(self, rank: int, pid: int, cause: str, phase: str, function: str):
        super().__init__(
            f"rank {rank} (pid {pid}) died of {cause} while {phase}, running {function}; "
            "close() and fork() again to go on"
        )
        self.rank = rank
        self.pid = pid
        self.cause = cause
        self.phase = phase
        self.function = function


class Failure(NamedTuple):
    """One rank's exception, in a form that always travels."""

    rank: int
    kind: type[BaseException] | None  # None where the class itself cannot travel
    summary: str  # "ValueError: x is negative"
    traceback: str


class RemoteError(SynkError, RuntimeError):
    """One or more ranks raised while running a command; the run stays usable.

    The exception raised is also an instance of the first failing rank's exception class
    wherever Python allows it, so ``except ValueError`` works as in one process.

    Attributes
    ----------
    failures : tuple of Failure
        All failing ranks, in rank order, each with its traceback.
    """

    failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        return self.report

    @property
    def report(self) -> str:
        """Each failing rank with its own traceback."""
        first = self.failures[0]
        lines = [f"rank {first.rank}: {first.summary}"]
        for failure in self.failures:
            lines.append(f"\n--- rank {failure.rank} ---\n{failure.traceback.rstrip()}")
        return "\n".join(lines)


def remote_error(failures: Sequence[Failure], n_ranks: int) -> RemoteError:
    """Build the exception that tells of ``failures``, typed like the first of them.

    Parameters
    ----------
    failures : sequence of Failure
        At least one, in rank order.
    n_ranks : int
        Size of the run, told in the message.
    """
    error = _typed_like(failures[0].kind)
    error.failures = tuple(
        failure._replace(traceback=f"Worker {failure.rank} of {n_ranks}:\n{failure.traceback}")
        for failure in failures
    )
    return error


def _typed_like(kind: type[BaseException] | None) -> RemoteError:
    if kind is None or not issubclass(kind, Exception) or issubclass(RemoteError, kind):
        return RemoteError()
    base: Any = OSError if issubclass(kind, OSError) else Exception
    try:
        mixed: Any = type(f"Remote{kind.__name__}", (RemoteError, kind), {"__module__": __name__})
        # The user's __init__ may need arguments that did not travel.
        return base.__new__(mixed)
    except Exception:  # built-in layouts that do not mix, or a class that refuses heirs
        return RemoteError()
