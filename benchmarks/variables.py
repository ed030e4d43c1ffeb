"""Measure collectives on many small shared variables, per variable.

    python benchmarks/variables.py [--quick] [--rounds N]

Times are those of the script, from the call to its end: the fastest of the rounds, each with new variables.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import pytensor

import synk

COUNTS = (500, 2000, 10_000)
VERBS: dict[str, Callable] = {
    "broadcast, first": synk.broadcast,
    "broadcast": synk.broadcast,
    "all_reduce, first": synk.all_reduce,
    "all_reduce": synk.all_reduce,
    "reduce": synk.reduce,
    "gather": synk.gather,
    "get_value": lambda variables: synk.get_value(1, variables),
    "get_lengths": synk.get_lengths,
    "set_value": lambda variables: synk.set_value(1, variables, [np.ones(3)] * len(variables)),
    "scatter, of another length": lambda variables: synk.scatter(variables, [np.ones(60)] * len(variables)),
    "scatter": lambda variables: synk.scatter(variables, [np.ones(60)] * len(variables)),
    "all_gather": synk.all_gather,
    "commit": lambda variables: synk.commit(),
    "restart": lambda variables: synk.restart(),
    "dropped": lambda variables: variables.clear(),
    "close": lambda variables: synk.close(),
}


def seconds(count: int) -> dict[str, float]:
    """Return the seconds that each collective takes for that many variables."""
    synk.fork(2)
    variables = [pytensor.shared(np.full(3, float(n)), shape=(None,)) for n in range(count)]
    taken = {}
    for name, verb in VERBS.items():
        start = time.perf_counter()
        verb(variables)
        taken[name] = time.perf_counter() - start
    return taken


def main() -> None:
    """Print a table of microseconds per variable."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer variables")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    counts = (20, 100) if options.quick else COUNTS
    best = {
        count: {name: min(took[name] for took in rounds) / count for name in VERBS}
        for count in counts
        for rounds in [[seconds(count) for _ in range(options.rounds)]]
    }
    print(f"{'µs a variable, of':30}" + "".join(f"{count:>10,}" for count in counts))
    for name in VERBS:
        print(f"{name:30}" + "".join(f"{1e6 * best[count][name]:10.1f}" for count in counts))


if __name__ == "__main__":
    main()
