"""Time candidates in turn, and compare them round by round.

    {name: callable} -> compare -> Comparison -> ratios

The speed of a machine drifts, and a candidate finds the caches as the one before has left them. So every
round runs each candidate once, every other round in reverse order, and two candidates are compared by the
ratio of their times in the same round: its median over rounds, with its quartiles.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

LEAST_ROUNDS = 3  # below that, quartiles mean nothing


class Spread(NamedTuple):
    """The median and the quartiles of some numbers."""

    low: float  # first quartile
    median: float
    high: float  # third quartile


class Comparison:
    """The times of candidates in every round; by default, others are compared with the first candidate."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]):
        if len({len(times) for times in seconds.values()}) > 1:
            raise ValueError(f"rounds are unequal: { {name: len(t) for name, t in seconds.items()} }")
        self.seconds = {name: list(times) for name, times in seconds.items()}
        self.reference = next(iter(self.seconds))

    def median(self, name: str) -> float:
        """Return the median time of a candidate, in seconds."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str | None = None) -> Spread:
        """Return the time of a candidate divided by that of ``to`` in the same round, over all rounds.

        ``to`` is another candidate, by default the reference.
        """
        pairs = zip(self.seconds[name], self.seconds[to or self.reference], strict=True)
        return spread([time / reference for time, reference in pairs])


def timed(candidate: Callable[[], Any]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    candidate()
    return time.perf_counter() - start


def compare(
    candidates: Mapping[str, Callable[[], Any]],
    rounds: int,
    warmup: int = 3,
    timer: Callable[[Callable[[], Any]], float] = timed,
    seconds: float = math.inf,
    on_round: Callable[[int], None] = lambda number: None,
) -> Comparison:
    """Run each candidate once in every round, and return the times; ``warmup`` rounds before do not count.

    After ``seconds`` no further round is begun, if there have been `LEAST_ROUNDS`. ``timer(candidate)`` runs
    a candidate and returns its seconds; a candidate that is timed elsewhere, such as in another process,
    needs its own. ``on_round(number)`` is called before each round; numbers of the warm-up are negative.
    """
    end = time.monotonic() + seconds
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number, names in enumerate(turns(list(candidates), warmup + rounds), start=-warmup):
        if number >= LEAST_ROUNDS and time.monotonic() > end:
            break
        on_round(number)
        for name in names:
            taken = timer(candidates[name])
            if number >= 0:
                times[name].append(taken)
    return Comparison(times)


def turns(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Yield the order of each round: forwards, backwards, forwards, ..."""
    for number in range(rounds):
        yield list(names) if number % 2 == 0 else list(reversed(names))


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, median, high)


def in_units(seconds: float) -> str:
    """Return a time as text, in s, in ms below a second, or in µs below 0.1 ms."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{three_digits(1e3 * seconds)} ms" if seconds >= 1e-4 else f"{three_digits(1e6 * seconds)} µs"


def three_digits(number: float) -> str:
    """Return a number as text with three digits or more, and without an exponent."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"


def in_bytes(n_bytes: float) -> str:
    """Return a size as text: 102 MB, 4 kB."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{three_digits(n_bytes / size)} {unit}"
    return f"{n_bytes:.0f} bytes"
