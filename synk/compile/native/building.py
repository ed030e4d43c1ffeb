"""Run C compilers at the same time, in a temporary folder that is removed afterwards.

If the process that started them is killed, the compilers end too. Each compiler runs in a process group with
a shell, and the shell waits at a pipe whose other end only the starting process holds. When that end closes,
the shell ends the group and removes the folder. (The kernel's signal of a parent's death would reach the
driver of the compiler only, not the programs that the driver has started.) If the shell is killed as well,
the folder stays. It was locked until then, and the next compilation removes all folders that nobody has
locked.

    sources -> work_folder -> a shell each -> compiler -> libraries, or why there are none
"""

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence

from synk.compile.native.own_files import NotOwn, read_own_file

PREFIX = "synk-cc-"
MOST_SAID = 2000  # characters of a compiler's complaint: one may have a line for each line of a long text

# A compiler that loops is ended, and one that writes without end: regions take a few seconds and a few MiB.
SECONDS = 600  # of a processor, for each process
MOST_WRITTEN = 64 << 20  # bytes of a file

# Arguments: descriptors of the folder and of the pipe, the file for what the compiler says, and the command.
# The folder is entered by its descriptor, because its path may lead elsewhere by now.
SHELL = """
umask 077
cd -P "/proc/self/fd/$1" && exec </dev/null >"$3" 2>&1 || exit 125
(
    read _
    trap "" TERM
    kill -TERM 0
    rm -rf ./*
    rmdir "$PWD"
    kill -KILL 0
) <"/proc/self/fd/$2" >/dev/null 2>&1 &
shift 3
(
    ulimit -t @SECONDS@
    ulimit -f @BLOCKS@
    exec "$@"
)
status=$?
exec 2>/dev/null
kill -KILL $!
wait
exit $status
""".replace("@SECONDS@", str(SECONDS)).replace("@BLOCKS@", str(MOST_WRITTEN // 512))

# Workers ignore signals, which the programs that they start would inherit.
SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class CompileError(RuntimeError):
    """The C compiler failed, or could not be run."""


def compile_all(
    sources: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> list[bytes | CompileError]:
    """Compile C texts to shared libraries, as many at the same time as there are cores.

    ``before`` and ``after`` are the words of the command before and behind the names of the files. Returns
    for each text the content of a library, or the error.
    """
    with contextlib.ExitStack() as held:
        try:
            folder = held.enter_context(work_folder())
            jobs = [_Job(folder, number, text) for number, text in enumerate(sources)]
            pipe = os.pipe()
        except OSError as error:
            where = f"{shlex.join(before)} cannot be run in {tempfile.tempdir}"
            reason = f"{where}: {error}; TMPDIR names another folder"
            return [CompileError(reason) for _ in sources]
        # What is raised from here on is a signal's handler's, which may be an OSError, too: a TimeoutError.
        return _compiled(jobs, pipe, before, after)


class _Job:
    """The compilation of one C text: its files in the work folder, and its command."""

    def __init__(self, folder: int, number: int, text: str):
        self.folder = folder
        self.text, self.library, self.said = (f"kernels{number}.{end}" for end in ("c", "so", "txt"))
        self.command = ""
        descriptor = os.open(
            self.text, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # whatever the umask is
            file.write(text.encode())

    def start(self, before: Sequence[str], after: Sequence[str], pipe: int) -> int:
        """Start the compiler, and return the process id of its shell."""
        command = [*before, self.text, "-o", self.library, *after]
        self.command = shlex.join(command)
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", SHELL, "sh", str(self.folder), str(pipe), self.said, *command],
            {**os.environ, "TMPDIR": "."},
            file_actions=[(os.POSIX_SPAWN_DUP2, held, held) for held in (self.folder, pipe)],  # inherits them
            setpgroup=0,
            setsigmask=[],
            setsigdef=SIGNALS,
        )

    def result(self, status: int) -> bytes | CompileError:
        """Return the library that the compiler has written, or an error with the compiler's messages."""
        reason = f"exit status {status}"
        if status == 0:
            try:
                return read_own_file(self.library, self.folder)
            except OSError as error:
                reason = f"exit status 0, but no library: {error}"
        with contextlib.suppress(OSError):
            said = read_own_file(self.said, self.folder).decode(errors="replace").strip()
            cut = f"(of {len(said)} characters, the last {MOST_SAID})\n" if len(said) > MOST_SAID else ""
            reason += f"\n{cut}{said[-MOST_SAID:]}"
        return CompileError(f"{self.command} failed: {reason.strip()}")


def _compiled(
    jobs: Sequence[_Job], ends: tuple[int, int], before: Sequence[str], after: Sequence[str]
) -> list[bytes | CompileError]:
    running: dict[_Job, int] = {}
    results: dict[_Job, bytes | CompileError] = {}
    pipe, end = ends

    def finish(job: _Job) -> None:
        status = _wait(running[job])
        del running[job]
        results[job] = job.result(status)

    # More at the same time than there are cores only need more memory.
    at_once = len(os.sched_getaffinity(0))
    try:
        for job in jobs:
            if len(running) == at_once:
                finish(next(iter(running)))
            try:
                running[job] = job.start(before, after, pipe)
            except OSError as error:  # no process left
                results[job] = CompileError(f"{job.command} failed: {error}")
        for job in list(running):
            finish(job)
        return [results[job] for job in jobs]
    finally:
        os.close(end)
        os.close(pipe)
        for pid in running.values():
            with contextlib.suppress(ProcessLookupError):  # the script has children reaped unseen
                os.killpg(pid, signal.SIGKILL)  # a child that was forked meanwhile holds the pipe, too
            _wait(pid)


def _wait(pid: int) -> int:
    """Wait for a child and return its exit status; 0 if the script ignores SIGCHLD, which reaps it unseen."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


@contextlib.contextmanager
def work_folder() -> Iterator[int]:
    """Yield the descriptor of a new folder, which is locked within this context and removed at its end."""
    _sweep(tempfile.gettempdir())
    path, descriptor = _make_folder()
    try:
        yield descriptor
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _make_folder() -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX)
        # Before it is locked, another process may take it for a folder that was left, and remove it.
        with contextlib.suppress(FileNotFoundError):
            os.chmod(path, 0o700)  # whatever the umask is
            descriptor = _open(path)
            with contextlib.suppress(OSError):  # where nothing can be locked, nothing is swept
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.isdir(path):
                return path, descriptor
            os.close(descriptor)


def _sweep(around: str) -> None:
    """Remove the work folders that killed compilations have left in the folder ``around``."""
    with contextlib.suppress(OSError):
        for name in os.listdir(around):
            if name.startswith(PREFIX):
                _remove_if_left(os.path.join(around, name))


def _remove_if_left(path: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


def _open(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(descriptor).st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise NotOwn(f"{path} is another user's")
