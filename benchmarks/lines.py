"""Processes that train on request, by lines of JSON on their standard input and output.

    Crew.run(steps) -> {"steps": 3} -> serve, in every leader -> {"seconds": …, "losses": …} -> Block

A leader is a script of its own, and not a child of `multiprocessing`: such a child would import what
this process has imported, and its memory would be counted. So this module imports nothing but the
standard library: leaders use it too.
"""

import contextlib
import json
import math
import os
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

PATIENCE = 60  # seconds for a leader to end
HERE = Path(__file__).parent


class Block(NamedTuple):
    """The time and the losses of a block of steps."""

    seconds: float  # of the slowest leader
    losses: list[float]  # of each step, mean over the leaders
    peaks: list[int]  # bytes, of each rank: the most memory that it ever had at once
    processor: float  # seconds of it that all ranks took together


class Crew:
    """A context around leaders that wait for `run`.

    Parameters
    ----------
    *commands : sequence of str
        A script beside this file with its arguments, for each leader.
    environment : dict, optional
        Beside that of this process.
    reach : sequence of callable, optional
        For each leader, what makes of its words those that start it on another machine, at the same path.
    """

    def __init__(
        self,
        *commands: list[str],
        environment: dict[str, str] | None = None,
        reach: Sequence[Callable[[list[str]], list[str]]] | None = None,
    ):
        self._commands, self._environment = commands, os.environ | (environment or {})
        self._reach = reach or [list] * len(commands)

    def __enter__(self) -> "Crew":
        self._leaders = [self._start(*one) for one in zip(self._reach, self._commands, strict=True)]
        return self

    def _start(self, reach: Callable[[list[str]], list[str]], words: list[str]) -> subprocess.Popen:
        script, *arguments = words
        command, pipe = reach([sys.executable, str(HERE / script), *arguments]), subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=self._environment)

    def __exit__(self, *error: object) -> None:
        for leader in self._leaders:
            with contextlib.suppress(BrokenPipeError):  # of one that is dead
                leader.stdin.close()  # the end of its input is a leader's word to leave
        for leader in self._leaders:
            try:
                leader.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                leader.kill()
                leader.wait()
            leader.stdout.close()

    def ready(self, until: float = math.inf) -> float:
        """Wait until every leader could make its first step; return the most seconds that one took.

        Parameters
        ----------
        until : float
            Of `time.monotonic`: a leader that has not answered then counts as broken.
        """
        return max(float(self._receive(leader, until)["ready"]) for leader in self._leaders)

    def run(self, steps: int, until: float = math.inf) -> Block:
        """Let the crew make some steps."""
        for leader in self._leaders:
            with contextlib.suppress(BrokenPipeError):  # of one that is dead: its answer will miss
                leader.stdin.write(json.dumps({"steps": steps}) + "\n")
                leader.stdin.flush()
        answers = [self._receive(leader, until) for leader in self._leaders]
        of_steps = zip(*(answer["losses"] for answer in answers), strict=True)
        return Block(
            seconds=max(answer["seconds"] for answer in answers),
            losses=[sum(losses) / len(losses) for losses in of_steps],
            peaks=[peak for answer in answers for peak in answer["peaks"]],
            processor=sum(answer["processor"] for answer in answers),
        )

    def kill(self) -> None:
        """End all leaders at once, and with them their ranks: they must not disturb other measurements."""
        for leader in self._leaders:
            leader.kill()

    def _receive(self, leader: subprocess.Popen, until: float) -> dict:
        # A leader says one line at a time, so none waits in the buffer of this pipe.
        patience = None if until == math.inf else max(0.0, until - time.monotonic())
        if not select.select([leader.stdout], [], [], patience)[0]:
            raise SystemExit(f"{said(leader)} did not answer in time")
        line = leader.stdout.readline()
        if not line:
            raise SystemExit(f"{said(leader)} broke down; see above")
        return json.loads(line)


def said(leader: subprocess.Popen) -> str:
    """Return what was started, by ssh perhaps."""
    return leader.args[1] if leader.args[0] == sys.executable else shlex.join(leader.args)


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of this machine at which nothing listens."""
    with socket.socket() as free:
        free.bind((address, 0))
        return free.getsockname()[1]


# --- in the leaders ----------------------------------------------------------------------------------


def serve(
    step: Callable[[int], float],
    pids: Iterable[int],
    ready: float,
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Make as many steps as the input says, again and again, until it ends.

    Parameters
    ----------
    step : callable
        ``step(number)`` returns the loss, which may be on a GPU: nobody waits for it before the last step.
    pids : iterable of int
        Processes whose peaks of memory and time of the processor to report.
    ready : float
        Seconds that it took until here, from where the leader counts them.
    finish : callable, optional
        Waits for what a GPU still computes; it is part of what is timed.
    """
    pids, number = list(pids), 0
    say({"ready": ready})
    for line in sys.stdin:
        losses, start, before = [], time.perf_counter(), processor(pids)
        for _ in range(json.loads(line)["steps"]):
            losses.append(step(number))
            number += 1
        losses = [float(loss) for loss in losses]
        finish()
        say(
            {
                "seconds": time.perf_counter() - start,
                "processor": processor(pids) - before,
                "losses": losses,
                "peaks": [peak(pid) for pid in pids],
            }
        )


def say(answer: dict) -> None:
    """Send a line."""
    print(json.dumps(answer), flush=True)


def peak(pid: int) -> int:
    """Return the most memory that a process had at once, in bytes, with shared memory that it touched."""
    # Unlike ru_maxrss this begins anew with the program, and can be read of other processes.
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * int(fields["VmHWM"].removesuffix("kB"))


def processor(pids: Iterable[int]) -> float:
    """Return the seconds of the processor that these have taken since they began, with all their threads."""
    # Linux makes a process's clock of its number so, as clock_getcpuclockid would return it.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)
