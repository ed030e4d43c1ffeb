"""What a call and an all-reduce cost on this machine, beside a copy of memory.

    python benchmarks/calls.py --ranks 2

Prints medians over rounds in which everything is measured in turn, so that a drift of the
machine's speed falls on all alike; quote the ratios.
"""

import argparse
import statistics
import time

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

ROUNDS = 15
LARGE = 25_500_000  # float32: the gradient of a ResNet-50, 102 MB
SMALL = 1_000  # float32: 4 kB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    synk.fork(options.ranks)
    measures = make_measures()
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for measure in measures.values():
        measure()  # compiles, and makes the buffers
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            seconds[name].append(timed(measure))
    copy = statistics.median(seconds["copy of 102 MB"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:28s} {1e3 * median:9.3f} ms   {median / copy:8.4f} copies of 102 MB")
    synk.close()


def make_measures():
    x = pt.matrix("x")
    trivial = synk.function([x], x.sum(), name="trivial")
    data = synk.data(np.ones((100, 4)))
    large = pytensor.shared(np.ones(LARGE, "float32"), name="large")
    small = pytensor.shared(np.ones(SMALL, "float32"), name="small")
    source, target = np.ones(LARGE, "float32"), np.empty(LARGE, "float32")
    return {
        "copy of 102 MB": lambda: np.copyto(target, source),
        "call with trivial work": lambda: trivial(data),
        "all-reduce of 4 kB": lambda: synk.all_reduce(small),
        "all-reduce of 102 MB": lambda: synk.all_reduce(large),
    }


def timed(measure) -> float:
    start = time.perf_counter()
    measure()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
