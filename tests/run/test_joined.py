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
