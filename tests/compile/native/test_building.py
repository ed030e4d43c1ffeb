"""Compilers that fail, hang, or are left alone: what they leave, and what is said."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

import pytest

from support.processes.waiting import wait_until
from synk.compile.native.building import PREFIX, CompileError, compile_all, work_folder
from synk.compile.native.compiler import find_compiler
from synk.compile.native.libraries import load

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder for temporary files, which is empty again after the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def made_by(tmp_path):
    """Return the compiler that a script stands for; $3 is the library."""

    def run(script, sources=("",)):
        program = tmp_path / "cc"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return compile_all(sources, [str(program)], [])

    return run


@needs_compiler
def test_texts_are_compiled_and_loaded_from_descriptors_that_come_again(here):
    texts = [f"int answer(void) {{ return {number}; }}" for number in (1, 2)]
    assert [load(content).answer() for content in find_compiler().compile(texts)] == [1, 2]


@needs_compiler
@pytest.mark.parametrize("mask", [0, 0o777])
def test_the_umask_does_not_matter(here, mask):
    before = os.umask(mask)
    try:
        (made,) = find_compiler().compile(["int answer(void) { return 3; }"])
    finally:
        os.umask(before)
    assert load(made).answer() == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", "exit status 0, but no library"),
        ("mkfifo $3", "no library: kernels0.so is no regular file"),
        ("mkdir $3", "no library: kernels0.so is no regular file"),
        ("ln -s /bin/true $3", "no library"),
        ("echo why >&2; exit 3", "exit status 3\nwhy"),
        ("printf '\\377' >&2; exit 3", "exit status 3\n\ufffd"),
        ("kill -KILL $$", "exit status 137"),
        ("head -c 50000 /dev/zero | tr '\\0' n; exit 1", "(of 50000 characters, the last 2000)\nnnn"),
    ],
)
def test_a_compiler_that_makes_nothing_is_reported(here, made_by, script, said):
    (error,) = made_by(script)
    assert isinstance(error, CompileError)
    assert said in str(error)
    assert len(str(error)) < 3000


def test_a_compiler_that_writes_without_end_is_ended(here, made_by):
    (error,) = made_by("exec yes")
    assert isinstance(error, CompileError)
    assert "failed: exit status 153" in str(error)  # of SIGXFSZ
    assert len(str(error)) < 3000


def test_one_text_that_fails_leaves_the_others(here, made_by):
    good, bad = made_by("grep -q good $1 && cp $1 $3", ["good", "bad"])
    assert good == b"good"
    assert isinstance(bad, CompileError)


@pytest.mark.parametrize("place", ["missing", "file"])
def test_a_temporary_folder_that_cannot_be_used_is_reported(tmp_path, monkeypatch, made_by, place):
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / place))
    (error,) = made_by("cp $1 $3")
    assert isinstance(error, CompileError)
    assert f"cannot be run in {tmp_path / place}" in str(error)


def test_no_room_for_a_process_is_reported(here, made_by, monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    (error,) = made_by("cp $1 $3")
    assert isinstance(error, CompileError)
    assert "temporarily unavailable" in str(error)


def test_no_more_compilers_run_at_once_than_there_are_cores(here, tmp_path, made_by, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    log = tmp_path / "log"
    made_by(f"echo 1 >> {log}; sleep 0.05; echo -1 >> {log}; exit 1", [""] * 5)
    running = list(accumulate(map(int, log.read_text().split())))
    assert max(running) == 2
    assert running[-1] == 0


def test_a_compiler_gets_default_signals_from_a_process_that_ignores_them(here, made_by):
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGUSR1)}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        (said,) = made_by("grep -E 'Sig(Ign|Blk)' /proc/self/status > $3")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        for number, handler in ignored.items():
            signal.signal(number, handler)
    masks = [int(line.split()[1], 16) for line in said.decode().splitlines()]
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    assert not [number for number in numbers for mask in masks if mask >> (number - 1) & 1]


def test_a_script_that_ignores_sigchld_gets_its_library(here, made_by):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        good, bad = made_by("grep -q good $1 && cp $1 $3", ["good", "bad"])
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert good == b"good"
    assert isinstance(bad, CompileError)


# A driver with a program of its own, as compilers are; it takes longer than any test waits.
SLOW = "sleep 300 & echo $PPID > {0}.part; mv {0}.part {0}; wait"


def wait_for_the_end_of(group):
    """Wait until nothing runs in a process group; zombies are the first process's to bury."""

    def running():
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
                if int(of) == group and state not in "ZX":
                    return True
        return False

    wait_until(lambda: not running())


@pytest.mark.parametrize(("raised", "forks"), [(KeyboardInterrupt, False), (TimeoutError, True)])
def test_an_interrupt_ends_the_compiler_and_removes_its_folder(here, tmp_path, made_by, raised, forks):
    group, children = tmp_path / "group", []

    def interrupt(number, frame):
        if not group.exists():
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if forks:
            children.append(os.fork())
            if not children[0]:
                time.sleep(20)
                os._exit(0)
        raise raised

    before = signal.signal(signal.SIGALRM, interrupt)
    # Again and again: while a process is spawned another thread may get the signal, and this one wait on.
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(raised):
            made_by(SLOW.format(group))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for child in children:
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it runs, and holds what it has got
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    wait_for_the_end_of(int(group.read_text()))


KILLED = """
import signal, sys
from synk.compile.native.building import compile_all
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
compile_all([""], [sys.argv[1]], [])
"""


@pytest.mark.slow
def test_a_killed_process_takes_its_compiler_and_its_folder_along(here, tmp_path, made_by):
    group, program = tmp_path / "group", tmp_path / "slow"
    program.write_text(f"#!/bin/sh\n{SLOW.format(group)}\n")
    program.chmod(0o755)
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(program)], env=os.environ | {"TMPDIR": str(here)}
    )
    try:
        wait_until(group.exists)
        (left,) = here.iterdir()
        assert made_by("cp $1 $3") == [b""]
        assert list(here.iterdir()) == [left]  # it is locked
    finally:
        killed.kill()
        killed.wait()
    wait_for_the_end_of(int(group.read_text()))
    assert list(here.iterdir()) == []


def test_only_folders_of_compilations_are_swept(here):
    others = [here / f"{PREFIX}file", here / f"{PREFIX}link", here / "another"]
    others[0].touch()
    others[1].symlink_to("another")
    others[2].mkdir()
    (here / f"{PREFIX}left").mkdir()
    with work_folder():
        assert len(list(here.iterdir())) == len(others) + 1
    assert sorted(here.iterdir()) == sorted(others)
    others[0].unlink()
    others[1].unlink()
    others[2].rmdir()


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_a_folder_that_another_process_sweeps_while_it_is_new_is_made_again(here, monkeypatch, moment):
    make, lock, made = tempfile.mkdtemp, fcntl.flock, []

    def swept(**kwargs):
        made.append(make(**kwargs))
        if moment == "before it is opened" and len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    def locked(descriptor, how):
        if moment == "before it is locked" and len(made) == 1:
            os.rmdir(made[0])
        lock(descriptor, how)

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    monkeypatch.setattr(fcntl, "flock", locked)
    with work_folder():
        assert len(made) == 2
    assert list(here.iterdir()) == []


def test_text_of_a_library_is_not_taken_for_one():
    with pytest.raises(OSError, match="too short|invalid ELF|not a dynamic"):
        load(b"no library")
