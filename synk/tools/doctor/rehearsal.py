"""A small run from beginning to end: two ranks, one all-reduce, one killed worker.

It runs in a separate process, which prints each stage once it is done, so that after a failure or a hang the
output shows at which stage it was.

    rehearse -> python -m synk.tools.doctor.rehearsal -> stage names -> Finding
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from synk.tools.doctor.finding import OK, PROBLEM, Finding
from synk.tools.doctor.machine import MachineFacts

SUBJECT = "a run of two ranks"
DEADLINE = 20.0  # seconds; a run that works takes two
REMEDIES = {  # by stage, in order
    "import synk": "see the findings on packages",
    "start two ranks": "see the findings on processes, pidfd and shared memory",
    "all-reduce": "see the findings on shared memory and memory limits",
    "compute": "see the findings on the C compiler and on BLAS",
    "notice a killed worker": "see the findings on pidfd and SIGCHLD",
    "close": "see the findings on pidfd and SIGCHLD",
}
COMMAND = [sys.executable, "-P", "-m", "synk.tools.doctor.rehearsal"]

# "OSError: ...", "synk.SharedMemoryFull: ..."
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Full|Died|Mismatch|Timeout)\b")


def rehearse(machine: MachineFacts) -> Finding:
    """Run the rehearsal in a process; return a finding that says whether it ended, or how far it came."""
    started = time.monotonic()
    ours = str(Path(__file__).resolve().parents[3])  # first on the path, so that it is the same synk
    path = os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="synk-") as folder:  # takes what a killed process leaves
        output, errors, status = _run({**os.environ, "PYTHONPATH": path, "TMPDIR": folder})
    missing = [stage for stage in REMEDIES if stage not in output.splitlines()]
    if status == 0 and not missing:
        return Finding(OK, SUBJECT, f"works, {time.monotonic() - started:.1f} s with imports")
    stage = missing[0] if missing else "close"
    reason = f"no end after {DEADLINE:.0f} s" if status is None else _reason(errors, f"exit code {status}")
    remedy = f"{REMEDIES[stage]}; if they are fine, report this line as a bug of synk"
    return Finding(PROBLEM, SUBJECT, f"{stage}: {reason}", remedy)


def _reason(errors: str, otherwise: str) -> str:
    """Return the line that names the exception; else the last line, or ``otherwise`` if there is none."""
    lines = errors.strip().splitlines()
    named = [line for line in lines if EXCEPTION.match(line)]
    return (named or lines or [otherwise])[-1]


def _run(environment: Mapping[str, str]) -> tuple[str, str, int | None]:
    """Return standard output, standard error and exit status; None for the status after the deadline."""
    with subprocess.Popen(
        COMMAND,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=DEADLINE)
        except BaseException as stopped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its group has its workers, too, and gets no ^C
            if not isinstance(stopped, subprocess.TimeoutExpired):
                raise
            output, errors = process.communicate()
            return output, errors, None
    return output, errors, process.returncode


def main() -> None:
    """Run all stages, and print each once it is done; raise an exception if a result is wrong."""
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    import synk

    _say("import synk")
    synk.fork(2)
    _say("start two ranks")
    rows = np.random.default_rng(1).normal(size=(2, 1000))
    table = pytensor.shared(np.zeros((1, 1000)), name="table")
    synk.scatter(table, rows)
    synk.all_reduce(table, "sum")
    for rank in range(2):
        np.testing.assert_allclose(synk.get_value(rank, table), rows.sum(axis=0, keepdims=True))
    _say("all-reduce")
    x = pt.matrix("x")
    function = synk.function([x], (pt.tanh(2 * x + 1).sum(), "sum"))
    np.testing.assert_allclose(function(rows), np.tanh(2 * rows + 1).sum())
    _say("compute")
    os.kill(synk.pids()[1], signal.SIGKILL)
    with contextlib.suppress(synk.WorkerDied):
        while True:  # if the death goes unnoticed, the deadline of the parent process ends this
            function(rows)
    _say("notice a killed worker")
    synk.close()
    _say("close")


def _say(stage: str) -> None:
    print(stage, flush=True)


if __name__ == "__main__":
    main()
