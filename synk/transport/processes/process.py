"""Fork child processes, find out whether they are alive, and what ended those that are not.

A process is watched through its pidfd, which becomes readable the moment the process ends, however it ends.
A pipe to the process would not do: its siblings hold the other end too, so it stays open.
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
from synk.values.script_frames import warn_the_script

LONG_SECONDS = 3600.0
REAP_SECONDS = 5.0  # that a process may take to end after it was told to
LOOK_SECONDS = 0.01  # between two looks at a condition that sends no event
REAPER = "synk-reaper"  # name of the thread that waits for a process that takes longer than REAP_SECONDS
# Threads that only wait and hold no lock, so that a fork beside them is safe; "synk-grace" belongs to
# `synk.extensions.fit`.
WITHOUT_LOCKS = {REAPER, "synk-grace"}
PR_SET_PDEATHSIG = 1


class Process:
    """A process watched through its pidfd: a child that is not reaped yet, or the parent."""

    def __init__(self, pid: int):
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the process to end; return whether it has ended."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def signal(self, number: int) -> None:
        """Send a signal to the process; do nothing if it has ended or belongs to another user.

        A master that has changed its user may no longer signal its workers. They end when the master closes
        their sockets.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._descriptor, number)

    def stopped(self) -> bool:
        """Return whether this child is stopped by a signal such as SIGSTOP, which its pidfd does not show."""
        try:
            flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PIDFD, self._descriptor, flags) is not None
        except ChildProcessError:
            return False

    def cause_of_death(self) -> str:
        """Return how this child ended: ``"signal SIGKILL"``, or ``"exit code 3"``, for example."""
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
        """Return the process state from /proc: ``"t (tracing stop), traced by pid 7"``, for example."""
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            tracer = fields.get("TracerPid", "0")
            return fields.get("State", "") + (f", traced by pid {tracer}" if tracer != "0" else "")
        return "gone"

    def reap(self, seconds: float = REAP_SECONDS) -> bool:
        """Wait for the child's end and remove it from the process table; return whether it ended in time.

        A child held by a debugger may not be reported as ended to its parent, even after SIGKILL. If the
        child has not ended in time, a daemon thread goes on waiting and reaps it later.
        """
        if self._descriptor < 0:
            return True
        deadline = time.monotonic() + seconds
        self.wait(seconds)
        if _within(deadline, self._is_reaped):
            self.close()
            return True
        with contextlib.suppress(RuntimeError):  # the system starts no more threads
            threading.Thread(target=self._await_end, name=REAPER, daemon=True).start()
        return False

    def _is_reaped(self, flags: int = os.WNOHANG) -> bool:
        """Reap the child if it has ended; return whether it is reaped."""
        try:
            return os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | flags) is not None
        except ChildProcessError:  # something else has reaped it
            return True

    def _await_end(self) -> None:
        self._is_reaped(flags=0)
        self.close()

    def close(self) -> None:
        """Close the pidfd, if it is still open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def warn_of_survivors(left: Mapping[str, Process]) -> None:
    """Warn about the processes that `Process.reap` could not reap in time; ``left`` maps names to them."""
    if left:
        listed = "; ".join(f"{name} (pid {process.pid}, {process.state()})" for name, process in left.items())
        warn_the_script(
            f"{listed}: still there {REAP_SECONDS:g} s after it was told to end. The kernel will end it and "
            "free its memory once a debugger, a frozen cgroup or a device lets go of it"
        )


def fork_child(live: Callable[[], object]) -> int:
    """Fork a child that calls ``live`` and then exits; return the child's pid in the parent.

    The child never returns from this function, even if ``live`` raises or memory runs out: it would go on
    running the user's script. Signals stay blocked in the child until it calls `ignore_signals`.
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
    """Flush Python's standard streams before a fork, else children would write the buffered text again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()


def open_standard_descriptors() -> None:
    """Open /dev/null as descriptors 0 to 2 where these are closed.

    Otherwise a socket of synk could get number 2, and programs would write their errors into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def watched(pid: int) -> Process:
    """Return the child with this pid as a `Process`; if no pidfd can be opened, kill the child and raise."""
    try:
        return Process(pid)
    except BaseException:  # out of descriptors: nothing could end the child later
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            _within(time.monotonic() + REAP_SECONDS, lambda: os.waitpid(pid, os.WNOHANG)[0] == pid)
        raise


def _within(deadline: float, done: Callable[[], bool]) -> bool:
    """Call ``done`` again and again until it returns true, or the deadline passes; return its last result."""
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def die_with(parent: int, by_kernel: bool = True) -> None:
    """Arrange that this process is killed when its parent ends; a child calls this first of all.

    Parameters
    ----------
    parent : int
        The pid of the process that forked this one.
    by_kernel : bool
        If true, the kernel kills this process, but already when the *thread* that forked it ends. Pass false
        if that thread may end before the parent process. Then a thread of this process watches the parent,
        and cannot act while native code holds the GIL.
    """
    if by_kernel:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        life = Process(parent)
        threading.Thread(target=_follow, args=(life,), name="synk-parent", daemon=True).start()
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


def _follow(life: Process) -> None:
    """Kill this process as soon as the process ``life`` has ended."""
    while not life.wait(LONG_SECONDS):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def forbid_core_dumps() -> None:
    """Disable core dumps of this process: dumping a big worker delays the news of its death by seconds."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
