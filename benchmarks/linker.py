"""Measure graphs in synk's linker, in PyTensor's own and in torch, with one thread.

    python benchmarks/linker.py
    python benchmarks/linker.py --only mlp adam --rounds 50
    python benchmarks/linker.py --only starts --full

Prints a table for each part: medians, and ratios to synk of runs side by side. `--quick` shrinks
everything to see that it runs; its numbers mean nothing.
"""

import argparse
from collections.abc import Iterator

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import adam
import dropout
import markdown_tables
import mlp
import rivals
import starts

from synk.tools.bench import pairs


def main() -> None:
    options = parse()
    print(machine.describe())
    for part in options.only:
        for table in PARTS[part](options):
            print(f"\n{table}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--rounds", type=int, default=40, help="in which everything is measured once")
    add("--quick", action="store_true", help="small sizes, synk and torch only")
    add(
        "--full",
        action="store_true",
        help="start PyTensor's own modes as well, with nothing compiled: minutes",
    )
    return parser.parse_args()


def time_adam(options: argparse.Namespace) -> Iterator[str]:
    size = 2_000 if options.quick else 2_000_000
    steps = rivals.agree(adam.candidates(size, *rivals.present(options.quick)), steps=3)
    yield markdown_tables.table(pairs.compare(steps, options.rounds), f"Adam, {size:,} parameters")


def time_mlp(options: argparse.Namespace) -> Iterator[str]:
    rows = 25 if options.quick else 250
    steps = rivals.agree(mlp.candidates(rows, *rivals.present(options.quick)))
    yield markdown_tables.table(pairs.compare(steps, options.rounds), f"MLP step, {rows} images")


def time_dropout(options: argparse.Namespace) -> Iterator[str]:
    shape = (25, 80) if options.quick else (250, 800)
    for applied in (False, True):
        draws = dropout.candidates(shape, *rivals.present(options.quick), applied)
        title = f"dropout {'applied' if applied else 'mask'}, {shape[0]} × {shape[1]}"
        yield markdown_tables.table(pairs.compare(draws, options.rounds), title)


def time_starts(options: argparse.Namespace) -> Iterator[str]:
    rounds = 1 if options.quick else 3
    names = ["synk, warm", "synk, cold"]
    yield starts.measure("deep", names, rounds)
    if options.full:
        names += ["PyTensor NUMBA, cold", "PyTensor C, cold"]
    yield starts.measure("mlp", names, rounds)


PARTS = {"adam": time_adam, "mlp": time_mlp, "dropout": time_dropout, "starts": time_starts}

if __name__ == "__main__":
    main()
