"""Collect what chains have drawn, and choose what is returned of it.

Reports -> Record.add -> Record.kept -> chains of one length, points and stats
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from synk.extensions.pymc.chains import Progress, Report


class Drawn(NamedTuple):
    """Draws of some chains, equally many of each."""

    chains: list[int]
    points: np.ndarray  # (chains, draws, size), unconstrained
    stats: dict[str, np.ndarray]  # (chains, draws)


class Record:
    """The draws of all chains so far, warm-up included.

    Attributes
    ----------
    progress : list of Progress
        By chain.
    interrupted : str or None
        Why sampling is to end early.
    """

    def __init__(self, n_chains: int, size: int):
        self.progress = [Progress()] * n_chains
        self.interrupted: str | None = None
        self._size = size
        self._done = [False] * n_chains
        self._points: list[list[np.ndarray]] = [[] for _ in range(n_chains)]
        self._stats: list[list[dict[str, np.ndarray]]] = [[] for _ in range(n_chains)]

    def interrupt(self, why: str) -> None:
        """Ask for the end of sampling."""
        self.interrupted = why

    def is_done(self) -> bool:
        """Return whether all chains have come to their ends."""
        return all(self._done)

    def known(self) -> dict[int, int]:
        """Return how many draws there are of each chain."""
        return {chain: sum(map(len, parts)) for chain, parts in enumerate(self._points) if parts}

    def add(self, reports: Iterable[Report]) -> None:
        """Take in what chains report."""
        for report in reports:
            self.progress[report.chain] = report.progress
            self._done[report.chain] |= report.done
            if len(report.points):
                self._points[report.chain].append(report.points)
                self._stats[report.chain].append(dict(report.stats))

    def n_tune(self, draws: int) -> int:
        """Return the number of steps of a warm-up, if so many draws follow it."""
        return max(max(one.total_draws for one in self.progress) - draws, 0)

    def kept(self, tuning: bool) -> Drawn:
        """Return the draws of the warm-up, or those after it.

        Of chains of several lengths, the length is chosen that keeps most draws.
        """
        parts = {}
        for chain in self.known():
            points = np.concatenate(self._points[chain])
            stats = {name: self._column(chain, name) for name in self._stats[chain][0]}
            wanted = stats.pop("tuning").astype(bool) == tuning
            if wanted.any():
                parts[chain] = points[wanted], {name: values[wanted] for name, values in stats.items()}
        length = longest([len(points) for points, _ in parts.values()])
        chains = [chain for chain, (points, _) in parts.items() if len(points) >= length]
        kept = [parts[chain] for chain in chains]
        names = kept[0][1] if kept else ()
        return Drawn(
            chains,
            np.array([points[:length] for points, _ in kept]).reshape(len(kept), length, self._size),
            {name: np.array([stats[name][:length] for _, stats in kept]) for name in names},
        )

    def _column(self, chain: int, name: str) -> Any:
        return np.concatenate([part[name] for part in self._stats[chain]])


def longest(lengths: list[int]) -> int:
    """Return the number of draws of which chains that have so many keep most draws together."""
    return max(lengths, key=lambda length: length * sum(one >= length for one in lengths), default=0)
