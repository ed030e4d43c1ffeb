"""Find the ranks that a model is evaluated on: those of the open run, or of one for the moment.

run_of(cores, chains, together) -> a run; evaluating(prepared, shard, cores) -> an Evaluation
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import sched_getaffinity
from typing import Any

import synk
from synk.extensions.pymc.density import Evaluation, Prepared


@contextmanager
def run_of(cores: int | None, chains: int | None, together: bool) -> Iterator[None]:
    """Use the run that is open, else fork one and close it.

    Ranks that do something together may be as many as there are cores; those that run chains, no more than
    chains, and by default 4.
    """
    if synk.is_open():
        if cores is not None and cores != synk.n_ranks():
            raise ValueError(f"cores={cores}, but the open run has {synk.n_ranks()} ranks; leave cores out")
        yield
        return
    usable = len(sched_getaffinity(0))
    if cores is None:
        cores = usable if together else min(4, usable)
    synk.fork(cores if together or chains is None else min(cores, chains), device="cpu", threads=1)
    try:
        yield
    finally:
        synk.close()


@contextmanager
def evaluating(prepared: Prepared, shard: Any, cores: int | None) -> Iterator[Evaluation]:
    """Yield an evaluation by all ranks, if the model is split, else by this process."""
    if not shard:
        yield prepared.here()
        return
    with run_of(cores, None, together=True):
        yield prepared.on_all_ranks(shard)


class Stop:
    """Tells a loop whether an interrupt has asked for its end."""

    stopped = False

    def interrupt(self, why: str) -> None:
        """Ask for the end, after the step that runs."""
        self.stopped = True
