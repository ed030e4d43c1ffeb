"""Tables in Markdown of candidates that were timed in turn.

Comparison -> table -> text
"""

from collections.abc import Iterator, Sequence

from synk.tools.bench.pairs import Comparison, Spread, in_units, turns


def in_turn(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield ``(round, name)``: A B C, C B A, A B C, ..."""
    for number, turn in enumerate(turns(names, rounds)):
        for name in turn:
            yield number, name


def table(comparison: Comparison, title: str) -> str:
    """Return the candidates' median times, and their ratios to the first one."""
    return aligned([title, "median", f"× time of {comparison.reference} (quartiles)"], rows(comparison))


def rows(comparison: Comparison) -> list[list[str]]:
    """Return for each candidate its name, median time and ratio to the first one."""
    return [
        [name, in_units(comparison.median(name)), in_words(comparison.ratio(name))]
        for name in comparison.seconds
    ]


def in_words(ratio: Spread) -> str:
    """Return a ratio with its quartiles."""
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are aligned, for reading as plain text too."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])
