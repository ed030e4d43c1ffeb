"""Of several processes that want the same library, one compiles and the others wait for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.waiting import wait_until
from synk.compile.native.compiler import find_compiler
from synk.compile.native.store import Store

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

COMPILER = """#!/bin/sh
echo started >> {folder}/starts
while [ ! -e {folder}/go ]; do sleep 0.02; done
exec {cc} "$@"
"""
RANK = """
from synk.compile.native.compiler import find_compiler
from synk.compile.native.libraries import Libraries, SourceText
from synk.compile.native.store import Store

(library,) = Libraries(find_compiler(), Store()).make([SourceText("int one(void) { return 1; }", ("k1",))])
print(library.one())
"""


@pytest.fixture
def crowd(tmp_path):
    """Return a function that starts a process, which waits in its compiler for a file ``go``."""
    script = tmp_path / "cc"
    script.write_text(COMPILER.format(folder=tmp_path, cc=" ".join(find_compiler().command)))
    script.chmod(0o700)
    environment = {**os.environ, "CC": str(script), "SYNK_CACHE": str(tmp_path / "store")}
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", RANK], env=environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    (tmp_path / "go").touch()
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def starts(tmp_path):
    """Return how many compilers have started."""
    path = tmp_path / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def waits(process):
    """Return whether a process waits for a lock."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(process.pid) in line.split() for line in lines)


def two_that_wait(tmp_path, start):
    """Start a process that compiles, and two that wait for it; return all three."""
    first = start()
    wait_until(lambda: starts(tmp_path) == 1, 60)
    others = start(), start()
    wait_until(lambda: starts(tmp_path) > 1 or all(map(waits, others)), 60)
    return first, *others


@pytest.mark.slow
def test_one_process_compiles_and_the_others_wait(tmp_path, crowd):
    crowd = two_that_wait(tmp_path, crowd)
    (tmp_path / "go").touch()
    assert [process.communicate()[0] for process in crowd] == ["1\n"] * 3
    assert starts(tmp_path) == 1


@pytest.mark.slow
def test_the_others_compile_when_the_one_is_killed(tmp_path, crowd):
    first, *others = two_that_wait(tmp_path, crowd)
    first.kill()
    wait_until(lambda: starts(tmp_path) == 3, 60)  # both at the same time
    (tmp_path / "go").touch()
    assert [process.communicate()[0] for process in others] == ["1\n"] * 2


@pytest.fixture
def held_turn(tmp_path):
    """Return a store in which a forked child has its turn for ``k1``, until the test ends."""
    store = Store(tmp_path / "store")
    begun, begin = os.pipe()
    child = os.fork()
    if not child:
        try:
            with store.lock("k1"):
                os.write(begin, b"b")
                signal.pause()
        finally:
            os._exit(1)
    os.close(begin)
    try:
        assert os.read(begun, 1) == b"b"
        yield store
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(begun)


def test_a_handler_that_raises_ends_the_wait(held_turn):
    def late(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError), held_turn.lock("k1"):
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("folder", [None, "file"])
def test_nobody_waits_where_there_is_no_folder(tmp_path, monkeypatch, folder):
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "store")
    store.folder = folder and store.folder
    with store.lock("k1"), store.lock("k1"):
        pass
