"""A script that mpirun has started, in two processes that stand for machines."""

import subprocess
import sys

import pytest

from support.machines.mpi_group import launch_here, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SECONDS = 60
SCRIPT = """
import signal, sys, synk
assert synk.fork(1) == 2
"""
ENDS = {"synk.close()": 0, "": 0, "sys.exit(3)": 3, "signal.raise_signal(signal.SIGTERM)": 143}


@pytest.mark.parametrize("end", ENDS, ids=["closed", "left", "exit", "terminated"])
def test_a_job_ends_with_its_script_and_has_its_status(end):
    job = launch_here(2, [sys.executable, "-c", SCRIPT + end], {})
    done = subprocess.run(job.command, env=job.environment, stderr=-1, text=True, timeout=SECONDS)
    assert done.returncode == ENDS[end], done.stderr
    assert "MPI_ABORT" not in done.stderr


# Two others do not reach each other at the first start: all can start again.
APART = """
import os, synk
import synk.transport.machines.mesh as mesh
rank, reach = int(os.environ["OMPI_COMM_WORLD_RANK"]), mesh.connect
tries = []

def connect(address, token, hello, deadline):
    tries.append(address)
    if rank == 2 and len(tries) == 2:  # the first is to the first machine
        raise TimeoutError("it does not answer")
    return reach(address, token, hello, deadline)

mesh.connect = connect
try:
    synk.fork(1)
except synk.SynkStateError as error:
    print(error)
assert synk.fork(1) == 3
print("started")
"""


@pytest.mark.slow
def test_a_start_at_which_others_do_not_reach_each_other_is_given_up_and_another_succeeds():
    job = launch_here(3, [sys.executable, "-c", APART], {})
    done = subprocess.run(job.command, env=job.environment, stdout=-1, stderr=-1, text=True, timeout=SECONDS)
    said, started = done.stdout.splitlines()
    assert "does not reach all others" in said
    assert started == "started"
    assert done.returncode == 0, done.stderr
