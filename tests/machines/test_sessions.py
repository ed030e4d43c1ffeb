"""A guard ends a session whose master is gone, and removes its folder."""

import os
import subprocess
import sys
import time

import pytest

from support.processes.scripts import check_gone
from synk.machines import sessions

SECONDS = 20

MASTER = """
import os, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(100)"
child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
words = [sys.argv[1], str(os.getpid()), str(child.pid), sys.argv[2]]
guard = subprocess.Popen([sys.executable, "-I", "-S", *words], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, guard.pid, flush=True)
if sys.stdin.readline() == "farewell\\n":
    guard.communicate(b"end")
    print(guard.wait(), child.poll(), flush=True)
    child.kill()
    child.wait()
"""


@pytest.fixture
def master(tmp_path):
    """A process with a session of its own, which ignores SIGTERM, and a guard; and their pids."""
    command = [sys.executable, "-c", MASTER, sessions.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.pids = list(map(int, process.stdout.readline().split()))
        yield process
        process.kill()


def test_a_session_ends_with_a_master_that_is_killed(master, tmp_path):
    session, guard = master.pids
    left = [tmp_path / f"{name}.{session}" for name in ("ompi", "prted")]
    for folder in (*left, tmp_path / "ompi.1"):
        (folder / "inner").mkdir(parents=True)
    master.kill()
    master.wait()
    check_gone([session, guard], SECONDS)
    assert os.listdir(tmp_path) == ["ompi.1"]


def test_a_guard_that_was_told_farewell_ends_nothing(master):
    master.stdin.write("farewell\n")
    master.stdin.flush()
    assert master.stdout.readline() == "0 None\n"
