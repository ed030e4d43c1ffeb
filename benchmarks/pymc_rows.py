"""Compare ranks that share the rows of a model with processes that have part of the rows each.

    python benchmarks/pymc_rows.py [--rows 100000] [--ranks 2] [--rounds 7]

The ranks evaluate one log-density and its gradient together. The processes evaluate one of their own each, of
as many rows as a rank has, and never meet: no way to share rows is faster. The ratio of their evaluations a
second is what meeting costs. Both take turns, and sleep until theirs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")

from pymc_ten import built, glm

import synk
from synk.extensions.pymc import compile_logp_dlogp
from synk.tools.bench.pairs import Comparison, turns


def seconds_of(evaluate: Callable[[Any], Any], vector: Any, count: int) -> float:
    """Return the seconds of an evaluation."""
    began = time.perf_counter()
    for _ in range(count):
        evaluate(vector)
    return (time.perf_counter() - began) / count


def alone(pipe: Any, n_rows: int, first: int, count: int) -> None:
    """Evaluate the log-density of some rows whenever told to; the other end starts all at once."""
    density = compile_logp_dlogp(built(glm, n_rows, first))
    vector = density.initial_point(1)
    seconds_of(density, vector, 10)
    pipe.send(None)
    while pipe.recv():
        pipe.send(seconds_of(density, vector, count))


def main() -> None:
    """Measure and print medians and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=200, help="evaluations a round")
    options = parser.parse_args()

    own = options.rows // options.ranks
    pipes = []
    for rank in range(options.ranks):
        pipe, other = multiprocessing.Pipe()
        arguments = (other, own, rank * own, options.count)
        multiprocessing.get_context("spawn").Process(target=alone, args=arguments, daemon=True).start()
        pipes.append(pipe)
    for pipe in pipes:
        pipe.recv()

    synk.fork(options.ranks, device="cpu", threads=1)
    density = compile_logp_dlogp(built(glm, own * options.ranks), shard=True)
    vector = density.initial_point(1)
    seconds_of(density, vector, 10)

    def together() -> float:
        return seconds_of(density, vector, options.count)

    def apart() -> float:
        for pipe in pipes:
            pipe.send(True)
        return max(pipe.recv() for pipe in pipes)

    times: dict[str, list[float]] = {"together": [], "apart": []}
    for names in turns(list(times), options.rounds):
        for name in names:
            times[name].append({"together": together, "apart": apart}[name]())
    for pipe in pipes:
        pipe.send(False)
    synk.close()

    found = Comparison(times)
    for name in times:
        print(f"{name:9} {1 / found.median(name):8.0f} gradients a second")
    ratio = found.ratio("apart")  # of times, so of gradients a second the other way round
    print(f"together / apart: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")


if __name__ == "__main__":
    main()
