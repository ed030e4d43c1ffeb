"""Who is alive, and what killed the others.

A pidfd becomes readable the moment its process ends, however it ends; the end of a pipe does
not tell, for siblings hold it too.

Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import threading
import warnings

LONG_SECONDS = 3600.0
PR_SET_PDEATHSIG = 1


class Process:
    """A child or parent process, watched through its pidfd.

    Parameters
    ----------
    pid : int
        A child that is not reaped yet, or the parent.
    """

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
        """Send a signal; a process that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError):
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
        except ChildProcessError:  # someone else in this program waited for it
            return "an unknown cause"
        if status is None:
            return "an unknown cause"
        if status.si_code == os.CLD_EXITED:
            return f"exit code {status.si_status}"
        named = {number.value: number.name for number in signal.Signals}  # real-time signals have no name
        return f"signal {named.get(status.si_status, status.si_status)}"

    def reap(self) -> None:
        """Take the child out of the process table and close the pidfd."""
        if self._descriptor >= 0:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
        self.close()

    def close(self) -> None:
        """Close the pidfd, if that was not done yet."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def fork_quietly() -> int:
    """Fork; Python's own warning counts the threads of BLAS libraries, which handle forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def watched(pid: int) -> Process:
    """Return a child as a `Process`; where that cannot be had, the child is ended."""
    try:
        return Process(pid)
    except BaseException:  # no descriptor left, and nobody would know of the child
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def die_with(parent: int, by_kernel: bool = True) -> None:
    """Have this process killed when its parent ends.

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
