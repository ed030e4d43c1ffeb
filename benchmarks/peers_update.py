"""The end of a step of Adam on 25 million parameters: all ranks' gradients are added up, parameters updated.

    compare(n_ranks, rounds) -> times of three candidates, in turn on the same ranks

They are the all-reduce and the update of all parameters on every rank, as with shard=None; the default, where
each rank does a part of both; and copies that move as many bytes as that part.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from rivals import Candidate, agree

import synk
from synk.extensions import updates
from synk.tools.bench import pairs

SIZE = 5000  # of a square of parameters
ROWS = 16
CALLS = 3  # of a candidate in a round
WHOLE, PART, MEMCPY = "shard=None", "the default", "memcpy of its bytes"


def compare(n_ranks: int, rounds: int, size: int = SIZE) -> pairs.Comparison:
    """Fork ranks, check that both ways come to the same parameters, and time candidates in turn."""
    synk.fork(n_ranks, threads=1)
    try:
        steps = agree({WHOLE: candidate(size, in_whole), PART: candidate(size, in_parts)}, steps=2)
        copy = synk.on_ranks(Copies, n_ranks, size * size)
        steps[MEMCPY] = partial(timed, copy, before=lambda: None)
        return pairs.compare(steps, rounds, warmup=1, timer=lambda step: step())
    finally:
        synk.close()


def candidate(size: int, finish: Callable[[Any, Any], Callable[[], Any]]) -> Candidate:
    """Return what times the end of some steps, behind that of a gradient which is not timed.

    The gradient of a mean of products costs little, and fills the vectors anew: a sum of sums would grow.
    """
    rng = np.random.default_rng(0)
    weights = pytensor.shared(rng.standard_normal((size, size), "float32"), name="W")
    x = pt.fmatrix("x")
    grad_updates, param_updates, flat = updates.adam((x @ weights).mean(), [weights])
    gradient = synk.function([x], updates=grad_updates)
    update = synk.function([], updates=param_updates)
    rows = synk.data(rng.random((ROWS, size), "float32"))
    step = partial(timed, finish(update, flat), before=partial(gradient, rows))
    return Candidate(step, lambda: [weights.get_value()])


def in_whole(update: Any, flat: Any) -> Any:
    """Return what `make_train_function` makes with shard=None."""
    return synk.sequence((synk.all_reduce, flat, "sum"), update)


def in_parts(update: Any, flat: Any) -> Any:
    """Return what `make_train_function` makes by default, or raise where it would make something else."""
    return synk.sharded_update(update, flat, required=True)


def timed(call: Callable[[], Any], before: Callable[[], Any]) -> float:
    """Return the seconds of one of `CALLS` calls."""
    seconds = 0.0
    for _ in range(CALLS):
        before()
        seconds += pairs.timed(call)
    return seconds / CALLS


class Copies:
    """Copies on a rank that read and write as many bytes as its part of the reduction and the update.

    For each element of its part a rank reads the gradients of all ranks, the parameter and two moments, and
    writes the last three: ``n_ranks + 6`` numbers, where a copy of one moves two.
    """

    def __init__(self, rank: int, n_ranks: int, size: int):
        length = (n_ranks + 6) * size // (2 * n_ranks)
        self._source, self._target = np.ones(length, "float32"), np.zeros(length, "float32")

    def __call__(self) -> None:
        np.copyto(self._target, self._source)
