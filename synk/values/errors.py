"""Every error that synk raises on purpose.

Each says what was wrong, with the value, and what to do. Where a built-in exception has the
same meaning the error is one of those too, so plain ``except`` clauses keep working.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class SynkError(Exception):
    """Base of all errors of this package."""


class SynkStateError(SynkError, RuntimeError):
    """A call that the present state does not allow: before ``fork``, after ``close``, in a worker."""


class CudaInitialisedError(SynkStateError):
    """CUDA was initialised before ``fork``; child processes cannot use it."""


class CudaUnavailable(SynkError, RuntimeError):
    """The script asks for GPUs, but the driver, a GPU or a library is missing or fails."""


class SharedMemoryFull(SynkError, MemoryError):
    """The shared-memory file system has no room for a segment."""


class SegmentLost(SynkError, OSError):
    """A rank had no file descriptor left to attach a segment of shared memory with."""


class CollectiveMismatch(SynkError, ValueError):
    """Ranks entered a collective with different operations, dtypes or shapes."""


class NonFinite(SynkError, ArithmeticError):
    """A shared variable holds NaN or infinities; raised by `check_finite`."""


class LinkLost(SynkStateError):
    """Two machines have lost their connection, though the first machine still reached both of them."""


class SynkWarning(UserWarning):
    """Something is allowed but probably not what was meant."""


# What a signal most likely means, where the system does not say why it was sent.
HINTS = {"signal SIGKILL": " (a kernel that is out of memory does that: see dmesg)"}


class RankState(NamedTuple):
    """The state of one rank at a moment, as seen from the master: an entry of ``SynkTimeout.ranks``.

    Parameters
    ----------
    rank, pid : int
    state : {"running", "stopped", "ended"}
        Of the process; on another machine, the machine.
    phase : str
        As of `WorkerDied`.
    stack : str
        Of all its Python threads, the innermost frame first; "" where the rank could not print it.

    Examples
    --------
    >>> print(synk.RankState(1, 4242, "running", "computing", ""))
    rank 1 (pid 4242) running, computing
    """

    rank: int
    pid: int
    state: str  # "running", "stopped" or "ended"
    phase: str  # as in WorkerDied
    stack: str  # of all its Python threads, the innermost frame first; "" where the rank could not print it

    def __str__(self) -> str:
        said = f"rank {self.rank} (pid {self.pid}) {self.state}, {self.phase}"
        return f"{said}:\n{self.stack.rstrip()}" if self.stack else said


class SynkTimeout(SynkError, TimeoutError):
    """A command did not end before its deadline.

    Attributes
    ----------
    seconds : float
        The deadline.
    function : str
        The command that was running.
    late : tuple of int
        The ranks that the master was waiting for.
    ranks : tuple of RankState
        What every rank was doing, in rank order.
    """

    def __init__(self, seconds: float, function: str, late: tuple[int, ...], ranks: tuple[RankState, ...]):
        waited = ", ".join(f"rank {rank}" for rank in late) or "the master's own part"
        super().__init__(
            f"{function} did not end within {seconds:g} s, waiting for {waited}; "
            "synk.restart() starts new workers, synk.close() ends the run\n\n" + "\n\n".join(map(str, ranks))
        )
        self.seconds = seconds
        self.function = function
        self.late = late
        self.ranks = ranks

    def __reduce__(self) -> Any:
        return type(self), (self.seconds, self.function, self.late, self.ranks)


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
    stderr : str
        The end of what the worker wrote to standard error, 4 KiB at most.
    """

    def __init__(self, rank: int, pid: int, cause: str, phase: str, function: str, stderr: str = ""):
        hint = HINTS.get(cause, "")
        said = f"\n\nits last words on standard error:\n{stderr.rstrip()}" if stderr.strip() else ""
        super().__init__(
            f"rank {rank} (pid {pid}) died of {cause} while {phase}, running {function}{hint}; "
            f"synk.restart() starts new workers, synk.close() ends the run{said}"
        )
        self.rank = rank
        self.pid = pid
        self.cause = cause
        self.phase = phase
        self.function = function
        self.stderr = stderr

    def __reduce__(self) -> Any:
        return type(self), (self.rank, self.pid, self.cause, self.phase, self.function, self.stderr)


def named(ranks: tuple[int, ...]) -> str:
    """Return consecutive ranks as text: "rank 2" or "ranks 2 to 5"."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


class MachineLost(WorkerDied):
    """A machine does not answer any more: it has gone down, or the connection to it is lost.

    Attributes
    ----------
    host : str
    ranks : tuple of int
        The ranks of the machine; the attribute ``rank`` is the first of them.
    cause : str
    """

    def __init__(self, host: str, ranks: tuple[int, ...], function: str, cause: str):
        self.host, self.ranks, self.function = host, ranks, function
        Exception.__init__(
            self,
            f"host {host}, with {named(ranks)}, does not answer any more ({cause}), running "
            f"{function}; synk.restart() goes on with the machines that are left, synk.close() ends the run",
        )
        self.rank, self.pid, self.cause, self.phase, self.stderr = ranks[0], 0, cause, "", ""

    def __reduce__(self) -> Any:
        return type(self), (self.host, self.ranks, self.function, self.cause)


NUMBER = re.compile(r"\d+")
LINE_OF_CODE = re.compile(r' *File "')  # of a traceback


class Failure(NamedTuple):
    """An exception that was raised on one rank, as text and its class, so that it can always be pickled."""

    rank: int
    kind: type[BaseException] | None  # None where the class cannot be pickled
    summary: str  # "ValueError: x is negative"
    traceback: str
    host: str = ""  # of the rank's machine; "" on the first machine
    brief: str = ""  # the traceback without frames of synk and PyTensor; "" where those matter

    @property
    def place(self) -> str:
        """Return the words that follow the rank's number in messages: " on host ...", or ""."""
        return f" on host {self.host}" if self.host else ""

    @property
    def pattern(self) -> str:
        """Return the text to compare: where a node raised, without its numbers, as shapes differ."""
        if not self.brief:
            return self.traceback.partition("\n")[2]
        lines = self.brief.splitlines()
        return "\n".join(line if LINE_OF_CODE.match(line) else NUMBER.sub("", line) for line in lines)


class RemoteError(SynkError, RuntimeError):
    """One or more ranks raised while running a command; the run stays usable.

    The exception raised is also an instance of the first failing rank's exception class
    wherever Python allows it, so ``except ValueError`` works as in one process.

    Attributes
    ----------
    failures : tuple of Failure
        All failing ranks, in rank order, each with its whole ``traceback``. The text of the error has equal
        ones once. If a node of a graph raised, it leaves out frames of synk and PyTensor, and ranks are alike
        if they differ in numbers only, such as shapes; ``pytensor.config.exception_verbosity = "medium"``,
        set before `fork`, shows the whole.
    """

    failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        return self.report

    @property
    def report(self) -> str:
        """The text of the error: the ranks that failed, and one traceback of those that failed alike."""
        first = self.failures[0]
        alike: dict[str, list[Failure]] = {}
        for failure in self.failures:
            alike.setdefault(failure.pattern, []).append(failure)
        lines = [f"rank {first.rank}{first.place}: {first.summary}"]
        for failure, *others in alike.values():
            also = f", and alike on {', '.join(_places(others))}" if others else ""
            head, _, whole = failure.traceback.partition("\n")
            told = (failure.brief or whole).rstrip()
            lines.append(f"\n--- rank {failure.rank}{failure.place}{also} ---\n{head}\n{told}")
        return "\n".join(lines)


def _places(failures: Sequence[Failure]) -> Iterator[str]:
    """Yield the ranks of failures as text, those of a machine that follow each other together."""
    run: list[Failure] = []
    for failure in failures:
        if run and (failure.rank, failure.place) != (run[-1].rank + 1, run[-1].place):
            yield named(tuple(one.rank for one in run)) + run[0].place
            run = []
        run.append(failure)
    yield named(tuple(one.rank for one in run)) + run[0].place


def remote_error(failures: Sequence[Failure], n_ranks: int) -> RemoteError:
    """Return the exception to raise for ``failures``, which are in rank order.

    It is also an instance of the first failure's exception class, where Python allows that.
    """
    error = _typed_like(failures[0].kind)
    error.failures = tuple(
        failure._replace(traceback=f"Worker {failure.rank} of {n_ranks}{failure.place}:\n{failure.traceback}")
        for failure in failures
    )
    return error


def _typed_like(kind: type[BaseException] | None) -> RemoteError:
    if kind is None or not issubclass(kind, Exception) or issubclass(RemoteError, kind):
        return RemoteError()
    base: Any = OSError if issubclass(kind, OSError) else Exception
    try:
        mixed: Any = type(f"Remote{kind.__name__}", (RemoteError, kind), {"__module__": "synk"})
        # The user's __init__ may need arguments that did not travel.
        return base.__new__(mixed)
    except Exception:  # built-in layouts that do not mix, or a class that refuses heirs
        return RemoteError()


# A traceback names these errors as a script catches them: synk.WorkerDied.
for _public in (
    SynkError,
    SynkStateError,
    CudaInitialisedError,
    CudaUnavailable,
    SharedMemoryFull,
    CollectiveMismatch,
    NonFinite,
    SynkWarning,
    RankState,
    SynkTimeout,
    WorkerDied,
    MachineLost,
    LinkLost,
    RemoteError,
):
    _public.__module__ = "synk"
