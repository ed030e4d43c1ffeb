"""Each kind of leftover is found, and the fixture around every test fails for it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.processes import leaks

TESTS = Path(__file__).parents[2]
NAME = f"synk-leak-test-{os.getpid()}"


@pytest.fixture
def before():
    return leaks.take()


def test_a_segment_is_found(before):
    segment = leaks.SHARED_MEMORY / NAME
    segment.touch()
    try:
        assert leaks.compare(before) == {"segments": [NAME]}
    finally:
        segment.unlink()


STRANGER = f"""
import mmap, os, sys, time
if os.fork():
    sys.exit()
os.setsid()
with open("{leaks.SHARED_MEMORY / NAME}", "w+b") as file:
    file.truncate(8)
    mapped = mmap.mmap(file.fileno(), 8)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_segment_of_a_stranger_is_not_ours(before):
    """Another run on the same machine: its session is another, and nothing ties it to this process."""
    with subprocess.Popen([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE) as starter:
        stranger = int(starter.stdout.readline())
        starter.wait()
    try:
        assert (leaks.SHARED_MEMORY / NAME).exists()
        assert leaks.compare(before) == {}
    finally:
        os.kill(stranger, signal.SIGKILL)
        (leaks.SHARED_MEMORY / NAME).unlink()


def test_a_zombie_is_found(before):
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert "zombie" in leaks.compare(before)["children"][0]
    os.waitpid(child, 0)
    assert leaks.compare(before) == {}


def test_an_orphan_is_found(before):
    """A worker whose master was killed is no descendant any more."""
    fork = "import os, time; pid = os.fork(); print(pid) if pid else (os.close(1), time.sleep(60))"
    orphan = int(subprocess.run([sys.executable, "-c", fork], stdout=subprocess.PIPE, check=True).stdout)
    try:
        assert leaks.compare(before) == {"children": [f"pid {orphan}"]}
    finally:
        leaks.end_children(before)
    assert leaks.leftovers(before) == {}


def test_a_thread_is_found(before):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="stays")
    thread.start()
    try:
        found = leaks.compare(before)
    finally:
        stop.set()
        thread.join()
    assert list(found) == ["threads"]
    assert "stays" in found["threads"][0]


SUITE = """
import os, subprocess, sys, types
import pytest

class SynkStateError(Exception): ...

class Fake(types.ModuleType):
    SynkStateError = SynkStateError
    run = None
    def fork(self, n, device=None):
        self.run = tuple(range(n))
        return n
    def close(self):
        self.run = None
    def pids(self):
        if self.run is None:
            raise SynkStateError
        return self.run

synk = sys.modules["synk"] = Fake("synk")

def test_clean(): ...
def test_descriptor(): os.open(os.devnull, os.O_RDONLY)
def test_child(): subprocess.Popen(["sleep", "60"]).returncode = 0
def test_run(): synk.fork(2)
def test_no_run_is_left_to_the_next(): assert synk.run is None
def test_ranks(ranks): assert ranks(3) == len(synk.pids()) == 3
def test_ranks_are_closed(): assert synk.run is None

@pytest.mark.leaks("descriptors", reason="to see it excused")
def test_excused(): os.open(os.devnull, os.O_RDONLY)
"""

SHARED_RUN = """
N_RANKS = 4
def test_first(module_ranks): assert module_ranks == 4
def test_other(): ...
def test_second(module_ranks): assert module_ranks == 4
"""


def run_pytest(folder, deadline=120, **modules):
    """Run a small suite under the real ``conftest.py`` in a process of its own."""
    conftest = (TESTS / "conftest.py").read_text()
    (folder / "conftest.py").write_text(conftest.replace("\nDEADLINE = 300", f"\nDEADLINE = {deadline}"))
    shutil.copytree(TESTS / "support" / "processes", folder / "support" / "processes")
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    options = ["-v", "-p", "no:cacheprovider", "--override-ini=pythonpath=."]
    command = [sys.executable, "-m", "pytest", *options, *(f"{name}.py" for name in modules)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_the_fixture_fails_the_test_that_leaks_and_no_other(tmp_path):
    out = run_pytest(tmp_path, test_alone=SUITE, test_together=SHARED_RUN).stdout
    errors = re.findall(r"^test_\w+\.py::(\w+) ERROR ", out, re.MULTILINE)
    assert errors == ["test_descriptor", "test_child", "test_run"], out
    assert "left a run open" in out
    assert "11 passed, 3 errors" in out


def test_a_leak_is_excused_only_with_a_reason(tmp_path):
    marked = "import pytest\n@pytest.mark.leaks('threads')\ndef test_it(): ...\n"
    ended = run_pytest(tmp_path, test_marked=marked)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "and a reason" in ended.stderr


def test_a_hung_test_ends_the_run_with_tracebacks(tmp_path):
    ended = run_pytest(tmp_path, deadline=0.5, test_hung="import time\ndef test_it(): time.sleep(60)\n")
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "in test_it" in ended.stderr
