"""A guard ends a session whose master or daemon is gone, and removes its folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.scripts import check_gone
from support.processes.waiting import wait_until
from synk.transport.machines import sessions

SECONDS = 20

MASTER = """
import os, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(100)"
child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
words = [sys.argv[1], str(os.getpid()), str(child.pid), sys.argv[2]]
guard = subprocess.Popen([sys.executable, "-I", "-S", *words], start_new_session=True)
print(child.pid, guard.pid, flush=True)
time.sleep(100)
"""


@pytest.fixture
def master(tmp_path):
    """A process with a session of its own, which ignores SIGTERM, and a guard; and their pids."""
    command = [sys.executable, "-c", MASTER, sessions.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
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


DAEMON = """#!{python}
import os, subprocess, sys
for folder in ("prted", "mpi"):
    os.makedirs(f"{{os.environ['TMPDIR']}}/{{folder}}.{{os.getpid()}}/inner")
leader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], stdout=subprocess.DEVNULL)
print(os.getpid(), os.getsid(0), leader.pid, *sys.argv[1:], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon(tmp_path):
    """A daemon that was started as ssh would: its pid, session, child and what it was told are `said`."""
    program = tmp_path / "bin" / sessions.DAEMON
    program.parent.mkdir()
    program.write_text(DAEMON.format(python=sys.executable))
    program.chmod(0o700)
    (tmp_path / "temporary").mkdir()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", sessions.__file__, program, "--daemonize", "--vpid"],
        env={**os.environ, "TMPDIR": f"{tmp_path}/temporary"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        process.said = process.stdout.readline().split()
        process.left = lambda: os.listdir(tmp_path / "temporary")
        yield process
        process.kill()


def test_a_daemon_leads_a_session_of_its_own(daemon):
    assert daemon.said[:2] == [str(daemon.pid)] * 2
    assert daemon.said[3:] == ["--leave-session-attached", "--vpid"]


def test_a_daemon_s_guard_is_deaf_to_what_schedulers_send(daemon):
    (guard,) = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()[:1]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(int(guard), number)
    daemon.kill()
    check_gone([int(guard)], SECONDS)
    assert daemon.left() == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_daemon_has_left_is_removed_and_its_session_ends(daemon, end):
    leader = int(daemon.said[2])
    assert len(daemon.left()) == 2
    daemon.send_signal(end)
    assert daemon.stdout.read() == "", "the login does not wait for the guard"
    check_gone([leader], SECONDS)
    wait_until(lambda: not daemon.left(), SECONDS)
