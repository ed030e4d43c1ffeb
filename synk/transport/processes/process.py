"""Fork processes, and find out which are alive and what killed the others.

A pidfd becomes readable the moment its process ends, however it ends; the end of a pipe does
not tell, for siblings hold it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from synk.transport.processes.signals import FAULTS
from synk.values.errors import SynkWarning
from synk.values.script_frames import stacklevel

LONG_SECONDS = 3600.0
REAP_SECONDS = 5.0  # for a process to end that was told to
LOOK_SECONDS = 0.01  # between looks for what wakes nobody up
REAPER = "synk-reaper"  # the thread that waits for a process that has not ended by then
WITHOUT_LOCKS = {REAPER, "synk-grace"}  # threads that only wait; the other one is of `synk.extensions.fit`
PR_SET_PDEATHSIG = 1


class Process:
    """A child that is not reaped yet, or the parent, watched through its pidfd."""

    def __init__(self, pid: int):
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def wait(self, seconds: float) -> bool:
        """Return whether the process ended, waiting for it at most ``seconds``."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def signal(self, number: int) -> None:
        """Send a signal; a process that has ended is left alone, and so is one of another user.

        A master that changes its user may not signal workers any more: they end as their sockets are shut.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._descriptor, number)

    def stopped(self) -> bool:
        """Return whether a signal has stopped this child; its pidfd does not tell."""
        try:
            flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PIDFD, self._descriptor, flags) is not None
        except ChildProcessError:
            return False

    def cause_of_death(self) -> str:
        """Return ``"signal SIGKILL"`` or ``"exit code 3"`` of a child that ended."""
        try:
            status = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
                return "an unknown cause (SIGCHLD is ignored, so the kernel keeps no status)"
            return "an unknown cause (something else in this program waited for it)"
        if status is None:
            return "an unknown cause"
        if status.si_code == os.CLD_EXITED:
            return f"exit code {status.si_status}"
        named = {number.value: number.name for number in signal.Signals}  # real-time signals have no name
        return f"signal {named.get(status.si_status, status.si_status)}"

    def state(self) -> str:
        """Return the kernel's word for its state: ``"t (tracing stop), traced by pid 7"``, say."""
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            tracer = told.get("TracerPid", "0")
            return told.get("State", "") + (f", traced by pid {tracer}" if tracer != "0" else "")
        return "gone"

    def reap(self, seconds: float = REAP_SECONDS) -> bool:
        """Take the child out of the process table; tell whether it has ended in time.

        The end of one that a debugger holds may be told to the debugger alone, however it was killed. If it
        takes too long, a thread goes on waiting.
        """
        if self._descriptor < 0:
            return True
        deadline = time.monotonic() + seconds
        self.wait(seconds)
        if _within(deadline, self._is_reaped):
            self.close()
            return True
        with contextlib.suppress(RuntimeError):  # no thread can be had
            threading.Thread(target=self._await_end, name=REAPER, daemon=True).start()
        return False

    def _is_reaped(self, flags: int = os.WNOHANG) -> bool:
        try:
            return os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | flags) is not None
        except ChildProcessError:  # there is no status to be had
            return True

    def _await_end(self) -> None:
        self._is_reaped(flags=0)
        self.close()

    def close(self) -> None:
        """Close the pidfd, if that was not done yet."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def warn_of_survivors(left: Mapping[str, Process]) -> None:
    """Warn of processes, by name, that `Process.reap` has left to the kernel."""
    if left:
        told = "; ".join(f"{name} (pid {process.pid}, {process.state()})" for name, process in left.items())
        warnings.warn(
            f"{told}: still there {REAP_SECONDS:g} s after it was told to end. The kernel will end it and "
            "free its memory once a debugger, a frozen cgroup or a device lets go of it",
            SynkWarning,
            stacklevel=stacklevel(),
        )


def fork_child(live: Callable[[], object]) -> int:
    """Fork a child that calls ``live`` and ends; return its pid in the parent.

    Whatever fails there, want of memory included, nothing of the child returns from here: it would go on with
    the script. Signals are blocked in the child until it has handlers of its own; see `ignore_signals`.
    """
    pid = -1
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
    try:
        with warnings.catch_warnings():
            # Python's own warning counts the threads of BLAS libraries, which handle forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                live()
    finally:
        if pid == 0:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def flush_streams() -> None:
    """Write out what Python's standard streams hold, before a fork: else children would write it again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()


def open_standard_descriptors() -> None:
    """Open descriptors 0 to 2 where they are closed: else one of ours would be taken for standard error."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def watched(pid: int) -> Process:
    """Return a child as a `Process`; where that cannot be had, the child is ended."""
    try:
        return Process(pid)
    except BaseException:  # no descriptor left, and nobody would know of the child
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            _within(time.monotonic() + REAP_SECONDS, lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
        raise


def _within(deadline: float, done: Callable[[], bool]) -> bool:
    """Tell whether something is done by then, looking again and again."""
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def die_with(parent: int, by_kernel: bool = True) -> None:
    """End this process when its parent ends.

    Called in a child first of all.

    Parameters
    ----------
    parent : int
        The pid it was forked from.
    by_kernel : bool
        The kernel kills it when the *thread* that forked ends. Where that may end before its process,
        a thread of this process looks after the parent, once native code lets it run.
    """
    if by_kernel:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        life = Process(parent)
        threading.Thread(target=_follow, args=(life,), name="synk-parent", daemon=True).start()
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def _follow(life: Process) -> None:
    while not life.wait(LONG_SECONDS):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def forbid_core_dumps() -> None:
    """Writing out the memory of a big worker would delay the news of its death by seconds."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
