"""Products of float32 matrices, oneDNN beside OpenBLAS, for `synk.compile.native.onednn_products`.

   python benchmarks/products.py                            sizes as training has them, one thread
   python benchmarks/products.py --size 32x128x512 --rounds 50

Seconds of the processor, which other programs may use too, and of the clock. N and T say whether a factor
lies by rows or is a transpose; oneDNN is called through ctypes, as programs in Python call it.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import numpy as np
from markdown_tables import aligned, in_words

from synk.compile.native.find_onednn import find
from synk.compile.native.onednn_products import Products, Sizes
from synk.tools.bench import pairs

TRAINING = ("32x128x512", "250x784x800", "250x800x800", "250x800x10")
OTHERS = ("64x64x64", "64x128x128", "1000x1000x1000", "1x800x800", "2x800x800", "250x800x4", "250x800x8")
ALL = Sizes(rows=0, columns=0, least=0, most=1 << 60)
TIMERS = {"processor": time.process_time, "clock": time.perf_counter}
WORK = 20_000_000  # multiplications that are timed together


def main() -> None:
    options = parse()
    print(machine.describe(), flush=True)
    library = find().library
    if library is None:
        raise SystemExit(find().reason)
    candidates = {"NumPy": np.dot, "oneDNN": Products(library, ALL)}
    rows = []
    for size in options.size:
        for orders in ("NN", "NT", "TN"):
            rows.append(row(size, orders, candidates, options.rounds))
            print(".", end="", flush=True)
    heads = ["rows × inner × columns", "NumPy", *(f"oneDNN × its {name}" for name in TIMERS)]
    print("\n" + aligned(heads, rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", nargs="+", default=[*TRAINING, *OTHERS], metavar="ROWSxINNERxCOLUMNS")
    add("--rounds", type=int, default=25)
    add("--quick", action="store_true", help="one size, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.size = options.size[:1]
    return options


def row(size: str, orders: str, dots: dict[str, Callable[..., Any]], rounds: int) -> list[str]:
    """Return a line of the table: NumPy's time of the processor, and oneDNN's share of both its times."""
    rows, inner, columns = map(int, size.split("x"))
    x, y = factor(rows, inner, orders[0]), factor(inner, columns, orders[1])
    out = np.empty((rows, columns), "float32")
    repeats = max(1, WORK // (rows * inner * columns))
    found = {}
    for name, clock in TIMERS.items():
        candidates = {library: lambda dot=dot: dot(x, y, out) for library, dot in dots.items()}
        found[name] = pairs.compare(
            candidates, rounds, timer=lambda call, clock=clock: timed(call, clock, repeats)
        )
    median = pairs.in_units(found["processor"].median("NumPy"))
    return [f"{size} {orders}", median, *(in_words(one.ratio("oneDNN")) for one in found.values())]


def factor(rows: int, columns: int, order: str) -> np.ndarray:
    """Return a random matrix that lies by rows, "N", or by columns, "T"."""
    values = np.random.default_rng(0).normal(size=(rows, columns)).astype("float32")
    return values if order == "N" else np.asfortranarray(values)


def timed(call: Callable[[], Any], clock: Callable[[], float], repeats: int) -> float:
    """Return the seconds of one of so many calls."""
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


if __name__ == "__main__":
    main()
