"""Measure calls with little work, of this checkout and of another one, in turn, beside a socket's round trip.

    python benchmarks/calls.py                     this checkout, on idle cores and beside a busy process
    python benchmarks/calls.py --against FOLDER    and a checkout of another commit, with the ratios

Every measurement is a process of its own, so that each imports its own synk; both use one environment.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from markdown_tables import aligned, in_turn, in_words

from synk.tools.bench.pairs import Comparison, in_units

HERE = Path(__file__).parent.parent
CALLS = 3000  # of each kind, for one time: several slices of the scheduler
ROUND_TRIP = "a byte to a process and back"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="the checkout of another commit")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.ranks)))
        return
    checkouts = {"here": HERE} | ({"there": options.against.resolve()} if options.against else {})
    for busy in (False, True):
        print(f"\n{table(checkouts, options, busy)}", flush=True)


def table(checkouts: dict[str, Path], options: argparse.Namespace, busy: bool) -> str:
    """Measure each checkout in each round, and compare them round by round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    with busy_process(busy):
        for _, name in in_turn(list(checkouts), options.rounds):
            found[name].append(run(checkouts[name], options.ranks))
    rows = []
    for kind in found["here"][0]:
        seconds = {name: [times[kind] for times in rounds] for name, rounds in found.items()}
        comparison = Comparison(seconds)
        medians = [in_units(comparison.median(name)) for name in seconds]
        trips = [times[kind] / times[ROUND_TRIP] for times in found["here"]]
        ratio = [in_words(comparison.ratio("here", to="there"))] if "there" in seconds else []
        rows.append([kind, *medians, f"{median(trips):.2f}", *ratio])
    title = f"{options.ranks} ranks, {'beside a busy process' if busy else 'idle cores'}"
    return aligned(
        [title, *checkouts, "× a round trip", *(["here / there (quartiles)"] if len(checkouts) > 1 else [])],
        rows,
    )


def run(checkout: Path, ranks: int) -> dict[str, float]:
    """Measure one checkout in a process of its own."""
    command = [sys.executable, __file__, "--measure", "--ranks", str(ranks)]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def busy_process(wanted: bool):
    """Keep one core busy meanwhile."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()


def measured(ranks: int) -> dict[str, float]:
    """Return the mean seconds of a call of each kind."""
    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    import synk

    synk.fork(ranks, device="cpu")
    x, w = pt.matrix("x"), pt.vector("w")
    nothing = synk.function([], [])
    total = synk.function([x], (x.sum(), "sum"))
    moments = synk.function([x], [(x @ w).mean(), ((x @ w).sum(), "sum"), ((x @ w).max(), "max")], [w])
    data, weights = synk.data(np.ones((1000, 10))), synk.data(np.ones(10))
    flat = pytensor.shared(np.zeros(1000, "float32"))
    step = synk.sequence(synk.function([], updates=[(flat, flat * 0.5)]), (synk.all_reduce, flat))
    order = np.random.default_rng(0).permutation(1000)[:500]
    kinds = {
        "nothing": nothing,
        "a sum of rows": lambda: total(data, batch=slice(0, 500)),
        "a sum of listed rows": lambda: total(data, batch=order),
        "three results": lambda: moments(data, weights),
        "synk.all_reduce, 4 kB": lambda: synk.all_reduce(flat),
        "an update and an all-reduce": step,
    }
    times = {name: mean_seconds(call) for name, call in kinds.items()}
    synk.close()
    with echo() as ask:
        return times | {ROUND_TRIP: mean_seconds(ask)}


@contextmanager
def echo():
    """Yield a function that sends a byte through a socket to another process, which sends it back."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            while theirs.send(theirs.recv(1)):
                pass
        finally:
            os._exit(0)
    theirs.close()
    try:
        yield lambda: (ours.send(b"x"), ours.recv(1))
    finally:
        ours.close()
        os.waitpid(pid, 0)


def mean_seconds(call) -> float:
    """Return the mean seconds of calls that follow each other."""
    for _ in range(CALLS):
        call()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


if __name__ == "__main__":
    main()
