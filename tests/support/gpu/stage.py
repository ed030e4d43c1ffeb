"""Run an act in a separate process, on a GPU, on the fake CuPy, or on cores.

    Stage("cupy").play("train", n_ranks=2) -> python acts.py cupy train {"n_ranks": 2} -> its answer

A process that has used CUDA cannot fork a run, so each act has one of its own; what hangs there is ended
with all that it forked.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ACTS = Path(__file__).with_name("acts.py")
SECONDS = 100  # for an act; a test has 120


class Stage:
    """The device on which acts are run.

    Parameters
    ----------
    place : {"cupy", "stand-in", "cores"}
    """

    def __init__(self, place):
        self.place = place
        self.is_gpu = place == "cupy"
        self.device = "cpu" if place == "cores" else "cuda"

    def play(self, act, seconds=SECONDS, **keywords):
        """Return the result of an act.

        Raises
        ------
        AssertionError
            With what it printed, if it fails or takes longer.
        """
        command = [sys.executable, str(ACTS), self.place, act, json.dumps(keywords)]
        pipe = subprocess.PIPE
        # A group of its own, in this session: what ends the session ends it too.
        acting = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, process_group=0
        )
        try:
            said, errors = acting.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(acting.pid, signal.SIGABRT)  # faulthandler tells where each process was
            time.sleep(1)
            end(acting)
            said, errors = acting.communicate()
            raise AssertionError(f"{act} took more than {seconds} s:\n{said}\n{errors}") from None
        finally:
            end(acting)
        assert acting.returncode == 0, f"{act} ended with {acting.returncode}:\n{said}\n{errors}"
        return json.loads(said.splitlines()[-1])


def end(acting):
    """Kill a process and all its descendants."""
    try:
        os.killpg(acting.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    acting.wait()


def check(found, expected, n_ranks, rtol):
    """Hold training on a device to training on cores."""
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=rtol)
    assert len(found["params"]) == n_ranks
    for params in found["params"]:
        assert params == found["params"][0], "ranks came to different parameters"
    np.testing.assert_allclose(found["params"][0], expected["params"][0], rtol=20 * rtol)
