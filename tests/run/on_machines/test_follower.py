"""The start and the end of a process of an MPI job that a script has started, without MPI."""

import os
import subprocess
import sys

import pytest

from support.processes import scripts
from synk.run.on_machines import follower
from synk.run.on_machines.started_jobs import FOLDER

pytestmark = pytest.mark.usefixtures("warm_interpreter")

PROGRAM = """
import atexit
from synk.run.on_machines import follower

def follow():
    if {fails}:
        raise TimeoutError("the master is cut off")

atexit.register(print, "here MPI waits for the others")
follower.follow = follow
follower.main()
"""


def run(fails):
    return scripts.run(PROGRAM.format(fails=fails), deadline=60)


def test_an_error_is_told_and_the_process_ends_without_waiting_for_the_others():
    done = run(fails=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "TimeoutError: the master is cut off" in done.stderr


def test_a_process_whose_script_has_ended_waits_for_nobody_either():
    done = run(fails=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_agent_starts_without_pytensor():
    command = [sys.executable, "-X", "importtime", follower.__file__]
    alone = {**os.environ, follower.RANK: "0", FOLDER: "/tmp"}  # the way to rank 0 is not in it
    done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=60)
    assert "synk.transport.machines.agent\n" in done.stderr
    assert "KeyError: 'SYNK_AGENT_ADDRESS'" in done.stderr
    assert "pytensor" not in done.stderr
