"""Find the model to evaluate, and the ranks to do it: those of the open run, or of a temporary one.

model_of -> a model
run_of(cores, chains, together) -> a run; evaluating(prepared, shard, cores) -> an Evaluation
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import sched_getaffinity
from typing import Any

import pymc as pm

import synk
from synk.extensions.pymc.density import Evaluation, Prepared


def model_of(model: Any, first: Any = None) -> Any:
    """Return the model, by default that of the ``with`` block; raise TypeError if ``first`` is a model."""
    if isinstance(first, pm.Model):
        raise TypeError("the first argument is a model: pass it by its name, model=, as in PyMC")
    if model is not None and not isinstance(model, pm.Model):
        raise TypeError(f"model={model!r} is no pymc.Model")
    return pm.modelcontext(model)


@contextmanager
def run_of(cores: int | None, chains: int | None, together: bool) -> Iterator[None]:
    """Use the open run in the ``with`` block, or fork one for the block and close it afterwards.

    If the ranks evaluate ``together``, there is by default one for each core. Else each runs chains of its
    own, and there are at most as many ranks as chains, by default at most 4.
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
    """Tells a loop whether an interrupt has asked for its end.

    Parameters
    ----------
    begun : bool
        Whether there is something to end; until this is set, an interrupt raises KeyboardInterrupt.
    """

    def __init__(self, begun: bool = True):
        self.begun, self.stopped = begun, False

    def interrupt(self, why: str) -> None:
        """Ask for the end, after the step that runs."""
        if not self.begun:
            raise KeyboardInterrupt
        self.stopped = True
