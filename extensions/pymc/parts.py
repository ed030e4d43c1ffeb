"""Evaluate a model at the draws of a trace by PyMC's own functions: each rank takes a part at a time.

Task -> over_draws: a run, the posterior in shared memory, its draws in parts
     -> RankDraws on each rank, one part a call: PyMC's own function, compiled by synk -> data sets by group
"""

from __future__ import annotations

import logging
import pickle
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import xarray
from pymc.progress_bar.progress import create_simple_progress

import synk
from synk.compile import array_mode
from synk.extensions.fit.signals import StoppedBySignals
from synk.extensions.pymc.runs import Stop, run_of

LATER = (
    "if PyMC itself can do this: ranks do not know densities that were defined after the fork, as those of "
    "pm.CustomDist(logp=); call synk.restart(), and then this again"
)
ALIKE: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "override"}
WHOLE = ("constant_data", "observed_data")  # groups of a trace that each part comes with

Evaluate = Callable[..., Mapping[str, Any]]


@dataclass
class Task:
    """A computation at each draw of a trace, such as log-likelihoods, and everything that it needs.

    Attributes
    ----------
    make : callable
        Called on each rank with its own copy of the model and with `options`. What it returns is called with
        the trace of a part, a seed, and ``compile_kwargs``, and returns data sets by group.
    model : pymc.Model
    options : dict
    posterior : xarray.Dataset
    dimension : str
        The dimension along which the draws are split.
    whole : dict of str to xarray.Dataset
        Further groups of the trace.
    """

    make: Callable[..., Evaluate]
    model: Any
    options: Mapping[str, Any]
    posterior: Any
    dimension: str
    whole: Mapping[str, Any]

    def pickled(self) -> bytes:
        """Return the task as bytes, without the values of the posterior, which travel in shared memory."""
        dims = {name: one.dims for name, one in self.posterior.items()}
        bare = replace(self, posterior=self.posterior.coords.to_dataset())
        try:
            return cloudpickle.dumps((bare, dims))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"the model cannot be sent to the ranks, use PyMC's own function: {error}"
            ) from error


class Part(NamedTuple):
    """Consecutive draws of a trace, ``start:stop``, and the seed of their random numbers."""

    number: int
    start: int
    stop: int
    seed: int


class RankDraws:
    """The parts of the draws that one rank evaluates, one at each call."""

    def __init__(
        self, rank: int, task: bytes, values: Mapping[str, np.ndarray], parts: Sequence[Sequence[Part]]
    ):
        self._task, dims = cloudpickle.loads(task)
        self._posterior = self._task.posterior.assign({name: (dims[name], values[name]) for name in dims})
        model = self._task.model
        for rv in model.free_RVs:
            model.set_initval(rv, None)  # with others, PyMC does not transform a model
        self._evaluate, self._mode = self._task.make(model, self._task.options), array_mode()
        self._waiting = deque(parts[rank])

    def __call__(self) -> Mapping[str, Any] | None:
        """Evaluate the next part, if there is one; groups without draws come with the first part of all."""
        if not self._waiting:
            return None
        part = self._waiting.popleft()
        posterior = self._posterior.isel({self._task.dimension: slice(part.start, part.stop)})
        trace = xarray.DataTree.from_dict({"posterior": posterior, **self._task.whole})
        with _warned_once(part):
            try:
                found = self._evaluate(trace, part.seed, compile_kwargs={"mode": self._mode})
            except NotImplementedError as error:
                error.add_note(LATER)
                raise
        return {
            name: group
            for name, group in found.items()
            if not part.number or self._task.dimension in group.dims
        }


@contextmanager
def _warned_once(part: Part) -> Iterator[None]:
    """Silence PyMC's warnings and log messages, except in the first part of all."""
    logger = logging.getLogger("pymc.sampling.forward")
    before, logger.disabled = logger.disabled, logger.disabled or part.number > 0
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # a part has few draws
            if part.number:
                warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def over_draws(
    task: Task, seeds: Sequence[int] | None, cores: int | None, progressbar: bool
) -> dict[str, Any]:
    """Return data sets by group, evaluated in as many parts as there are seeds, or one for each rank.

    ^C raises KeyboardInterrupt when the parts that run have ended.
    """
    pickled = task.pickled()  # before the fork: so ranks know classes that the model has made
    with run_of(cores, None, together=True):
        found: list[Mapping[str, Any]] = []
        n_ranks, stop = synk.n_ranks(), Stop()
        parts = split(task.posterior.sizes[task.dimension], seeds or [0] * n_ranks)
        shares = [parts[rank::n_ranks] for rank in range(n_ranks)]
        values = {name: synk.data(one.values) for name, one in task.posterior.items()}
        bar = create_simple_progress(progressbar)
        with closing(synk.on_ranks(RankDraws, pickled, values, shares)) as ranks, StoppedBySignals(stop), bar:
            shown = bar.add_task("Computing ...", completed=0, total=len(parts))
            while len(found) < len(parts):
                found += [one for one in ranks() if one is not None]
                bar.update(shown, completed=len(found), refresh=True)
                if stop.stopped:  # PyMC may have returned early, with draws that it did not make
                    raise KeyboardInterrupt
    return joined(found, task.dimension)


def split(n_draws: int, seeds: Sequence[int]) -> list[Part]:
    """Return parts of about equal length, one for each seed, or for each draw if they are fewer."""
    n_parts = min(n_draws, len(seeds))
    edges = [n_draws * k // n_parts for k in range(n_parts + 1)]
    return [Part(k, *edge, seeds[k]) for k, edge in enumerate(pairwise(edges))]


def joined(found: Sequence[Mapping[str, Any]], dimension: str) -> dict[str, Any]:
    """Return the groups of all parts, concatenated along a dimension."""
    return {
        name: xarray.concat([one[name] for one in found], dimension, **ALIKE)
        if dimension in group.dims
        else group
        for name, group in found[0].items()
    }
