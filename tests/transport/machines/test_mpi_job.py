"""An MPI job ends with all that it has on this machine: processes, folders, segments."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from support.machines.mpi_group import MpiGroup, launch_here, missing
from support.processes.leaks import processes
from support.processes.scripts import check_gone
from support.processes.waiting import wait_until
from support.slow import slow
from synk.transport.commands.interfaces import Disconnected
from synk.transport.machines.mpi_job import MpiJob
from synk.transport.machines.sessions import remove_folder
from synk.values.errors import LinkLost

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SLEEP = "import time; print('ready', file=__import__('sys').stderr, flush=True); time.sleep(100)"
PATIENCE = 30.0  # seconds


@pytest.fixture
def start():
    """Start a job of two processes that run a program."""
    jobs = []

    def start(program):
        jobs.append(MpiJob(launch_here(2, [sys.executable, "-c", program], {})))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture
def job(start):
    """A job of two processes that both run."""
    job = start(SLEEP)
    wait_until(lambda: job.log.tail().count("ready") == 2, PATIENCE)
    return job


def left_of(pid):
    """Return what is there of a job: folders of its mpirun, and pids of its session."""
    sessions = [
        process.pid for process in processes() if not process.zombie and session_of(process.pid) == pid
    ]
    return [*Path(tempfile.gettempdir()).glob(f"*{pid}*"), *sessions]


def session_of(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def test_a_job_that_is_ended_leaves_nothing(job):
    assert job.exit_code() is None
    assert len(left_of(job.pid)) >= 4, "mpirun, two processes and a folder"
    job.end()
    assert left_of(job.pid) == []
    assert job.exit_code() is not None
    job.end()  # once more does nothing


def test_a_job_that_hangs_is_killed(job):
    os.kill(job.pid, signal.SIGSTOP)  # as deaf to SIGTERM as an mpirun whose link is dead
    job.end(seconds=0.1)
    assert job.exit_code() == -signal.SIGKILL
    assert left_of(job.pid) == []


@pytest.mark.slow
def test_a_guard_that_is_stopped_holds_nothing_up(job):
    guard = job._guard.pid
    os.kill(guard, signal.SIGSTOP)
    job.end()
    assert left_of(job.pid) == []
    check_gone([guard], PATIENCE)


def test_the_end_of_a_job_is_noticed_with_its_last_words(start):
    job = start("import sys; sys.exit('the reason')")
    wait_until(lambda: job.exit_code() is not None, PATIENCE)
    assert job.exit_code() == 1
    assert "the reason" in job.log.tail()
    assert left_of(job.pid) == []


ALONE = """
import os, sys
from synk.transport.machines.mpi_job import join_own_job
from synk.values.errors import SynkStateError
try:
    join_own_job(sys.argv[1])
except SynkStateError as error:
    print(os.getsid(0), os.environ["TMPDIR"], error, flush=True)
os._exit(0)  # as one that is killed
"""


@pytest.mark.slow
def test_a_process_without_its_daemon_does_not_go_on_alone_and_what_it_makes_goes_with_the_session(tmp_path):
    alone = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_btl": "self,tcp", "TMPDIR": "/tmp"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path],
        env={**os.environ, **alone},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        start_new_session=True,
    )
    session, temporary, said = done.stdout.split(maxsplit=2)
    assert temporary == "/tmp"
    assert "daemon of Open MPI has ended" in said
    assert [path.name for path in tmp_path.iterdir()] == [f"mpi.{session}"]
    remove_folder(str(tmp_path), int(session))
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import os, sys, time
from synk.transport.machines.mpi_job import limited_start
os.setsid()
with limited_start(sys.argv[1], seconds=100):
    pass
os.mkdir(f"{sys.argv[1]}/prted.{os.getpid()}")
with limited_start(sys.argv[1], seconds=0.1):
    time.sleep(100)
"""


@pytest.mark.slow
def test_a_process_that_does_not_join_its_job_in_time_ends_with_it(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path], timeout=PATIENCE)
    assert done.returncode == -signal.SIGTERM
    wait_until(lambda: list(tmp_path.iterdir()) == [], PATIENCE)


MASTER = """
import os, signal, sys, time
what, program = sys.argv[1:]
if what == "asleep":
    from support.machines.mpi_group import launch_here
    from synk.transport.machines.mpi_job import MpiJob
    job = MpiJob(launch_here(2, [sys.executable, "-c", program], {}))
    while job.log.tail().count("ready") < 2:
        time.sleep(0.01)
else:
    from support.machines.mpi_group import MpiGroup
    from support.machines.suite import agree
    group = MpiGroup(2, with_agent=True)
    group.outcomes(agree)
    job = group.job
if what == "hanging":
    os.kill(job.pid, signal.SIGSTOP)
print(job.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("what", ["asleep", slow("well"), slow("hanging")])
def test_a_job_ends_with_its_master(what):
    told = subprocess.run(
        [sys.executable, "-c", MASTER, what, SLEEP],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        timeout=PATIENCE + 60,
    )
    assert told.returncode == -signal.SIGKILL
    pid = int(told.stdout)
    wait_until(lambda: left_of(pid) == [], PATIENCE)


def pid(leaders, watch):
    return os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [slow("agent"), "leader"])
def test_rank_0_is_told_when_processes_die(victim):
    group = MpiGroup(2, with_agent=True)
    try:
        _, leader = group.outcomes(pid)
        (agent,) = {*left_of(group.job.pid)[-2:]} - {leader}
        os.kill(agent if victim == "agent" else leader, signal.SIGKILL)
        group.leaders.begin(10)
        with pytest.raises((Disconnected, LinkLost)):  # as one or the other is noticed first
            group.leaders.all_reduce(np.ones(3), "sum", lambda: None)
    finally:
        group.close()
    assert left_of(group.job.pid) == []
