"""Collect the draws of all chains, and choose which of them are returned.

Reports -> Record.add -> Record.kept, Record.with_warmup -> chains of one length, points and stats
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from synk.extensions.pymc.chains import Progress, Report


class Drawn(NamedTuple):
    """Draws of some chains, the same number of each."""

    chains: list[int]
    points: np.ndarray  # (chains, draws, size), unconstrained
    stats: dict[str, np.ndarray]  # (chains, draws)


class Record:
    """The draws of all chains so far, warm-up included.

    Attributes
    ----------
    progress : list of Progress
        By chain.
    """

    def __init__(self, n_chains: int, size: int):
        self.progress = [Progress()] * n_chains
        self._size = size
        self._done = [False] * n_chains
        self._points: list[list[np.ndarray]] = [[] for _ in range(n_chains)]
        self._stats: list[list[dict[str, np.ndarray]]] = [[] for _ in range(n_chains)]

    def is_done(self) -> bool:
        """Return whether all chains are done."""
        return all(self._done)

    def known(self) -> dict[int, int]:
        """Return how many draws there are of each chain."""
        return {chain: sum(map(len, parts)) for chain, parts in enumerate(self._points) if parts}

    def add(self, reports: Iterable[Report]) -> None:
        """Add the draws and the progress that chains report."""
        for report in reports:
            self.progress[report.chain] = report.progress
            self._done[report.chain] |= report.done
            if len(report.points):
                self._points[report.chain].append(report.points)
                self._stats[report.chain].append(dict(report.stats))

    def kept(self, tuning: bool, chains: Sequence[int] | None = None) -> Drawn:
        """Return draws of some chains, all cut to the length of the shortest of these.

        They are those of the warm-up if ``tuning``, else those after it. If ``chains`` is None, short
        chains are left out where that keeps more draws in total.
        """
        parts = {chain: self._part(chain, tuning) for chain in self.known()}
        lengths = {chain: len(points) for chain, (points, _) in parts.items()}
        if chains is None:
            enough = longest([length for length in lengths.values() if length])
            chains = [chain for chain, length in lengths.items() if 0 < enough <= length]
        length = min((lengths[chain] for chain in chains), default=0)
        kept = [parts[chain] for chain in chains]
        names = kept[0][1] if kept else ()
        return Drawn(
            list(chains),
            np.array([points[:length] for points, _ in kept]).reshape(len(kept), length, self._size),
            {name: np.array([stats[name][:length] for _, stats in kept]) for name in names},
        )

    def with_warmup(self) -> tuple[Drawn, Drawn]:
        """Return the draws, and the warm-up of the same chains, or of all chains if there are no draws."""
        chains = self.kept(tuning=False).chains or self.kept(tuning=True).chains
        return self.kept(tuning=False, chains=chains), self.kept(tuning=True, chains=chains)

    def _part(self, chain: int, tuning: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return points and stats of a chain, of its warm-up or after it."""
        stats = {name: self._column(chain, name) for name in self._stats[chain][0]}
        wanted = stats["tuning"].astype(bool) == tuning
        points = np.concatenate(self._points[chain])
        return points[wanted], {name: values[wanted] for name, values in stats.items()}

    def _column(self, chain: int, name: str) -> Any:
        return np.concatenate([part[name] for part in self._stats[chain]])


def longest(lengths: list[int]) -> int:
    """Return the length to cut chains to, dropping shorter ones, that keeps the most draws in total."""
    return max(lengths, key=lambda length: length * sum(one >= length for one in lengths), default=0)
