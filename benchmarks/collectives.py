"""All-reduces of many sizes: synk, Open MPI, gloo and memcpy, in turn.

    python benchmarks/collectives.py
    python benchmarks/collectives.py --ranks 4 --sizes 4000 1000000

``python -m synk bench`` measures the two sizes of docs/performance.rst; this script shows
the sizes between them, and where latency gives way to bandwidth. It prints a table of medians, and one of
ratios to the time that synk takes inside a step. Rivals need the extra ``bench``.
"""

import argparse
from collections.abc import Iterator

from synk.tools.bench import all_reduce, figures, how_busy, pairs
from synk.tools.bench.all_reduce import IN_STEP, ONE_COPY, THEIRS, VERB
from synk.tools.bench.rivals import GLOO, MPI, versions
from synk.tools.bench.workbench import LARGE, Workbench, opened, show

COLUMNS = {
    "memcpy": ONE_COPY,
    "in a step": IN_STEP,
    "synk.all_reduce": VERB,
    "Open MPI": THEIRS[MPI],
    "gloo": THEIRS[GLOO],
}
SIZES = (4_000, 32_000, 256_000, 2_000_000, 16_000_000, 4 * LARGE)  # bytes
ITEMS_A_TIME = 3_000_000  # for one time, short vectors are summed often


def main() -> None:
    options = parse()
    with opened(options.ranks, options.rounds, options.quick) as bench:
        print("\n".join([*how_busy.describe(versions(bench.crews)).lines(), *bench.left_out]), flush=True)
        comparisons = dict(measure(bench, options.sizes))
    show("")
    title = f"All-reduces of float32, {options.ranks} ranks"
    print(f"\n{title}\n{'-' * len(title)}")
    for table in (medians(comparisons), ratios(comparisons)):
        print(f"\n{table}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--rounds", type=int, default=20, help="in which everything is measured once")
    add("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    add("--quick", action="store_true", help="one small size, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.sizes = SIZES[:1]
    return options


def measure(bench: Workbench, sizes: list[int]) -> Iterator[tuple[str, pairs.Comparison]]:
    """Yield each size in words and what was found."""
    for n_bytes in sizes:
        n_items = max(1, n_bytes // 4)
        times = min(bench.sizes.repeats, 1 + ITEMS_A_TIME // n_items)
        title = pairs.in_bytes(n_bytes)
        copies = all_reduce.one_copy(bench, n_items, times)
        yield title, all_reduce.compare(bench, title, n_items, times, copies)


def medians(comparisons: dict[str, pairs.Comparison]) -> str:
    """Return the table of times."""
    columns = columns_of(comparisons)
    rows = [
        [size, *(pairs.in_units(found.median(name)) for name in columns.values())]
        for size, found in comparisons.items()
    ]
    return figures.simple_table(["median", *columns], rows)


def ratios(comparisons: dict[str, pairs.Comparison]) -> str:
    """Return the table of ratios."""
    columns = {heading: name for heading, name in columns_of(comparisons).items() if name != IN_STEP}
    rows = [
        [size, *(figures.ratio_in_words(found.ratio(name, to=IN_STEP)) for name in columns.values())]
        for size, found in comparisons.items()
    ]
    return figures.simple_table(["× in a step", *columns], rows)


def columns_of(comparisons: dict[str, pairs.Comparison]) -> dict[str, str]:
    """Return heading and name of the candidates that took part."""
    found = next(iter(comparisons.values())).seconds
    return {heading: name for heading, name in COLUMNS.items() if name in found}


if __name__ == "__main__":
    main()
