"""Comparisons of `test_api_model` after every call: results, errors, each rank's values, contents of Data.

both(the model's part, synk's part) -> assert_same or assert_promised -> look
"""

from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis.stateful import RuleBasedStateMachine

import synk
from support.api.arguments import DATA, sample, shape_of
from support.api.model import TYPES, Model
from support.api.recipes import INPUTS
from support.api.rules import Mismatch, Promised

# Rounding of a few operations; sums are in the same order on both sides.
TOLERANCES = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-11}
# Values beyond start anew: they would grow until rounding hides everything.
LARGE = {"float16": 1e2, "float32": 1e4, "float64": 1e6}


def assert_same(result, expected, scale=1.0):
    """Compare results: containers, shapes and dtypes exactly, floats to rounding of ``scale``."""
    if isinstance(expected, list | tuple):
        assert type(result) is type(expected)
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            assert_same(one, other, scale)
    elif isinstance(expected, np.ndarray):
        result = np.asarray(result)
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        rtol = TOLERANCES.get(expected.dtype.name, 0)
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol * scale)
    else:
        assert result == expected


def assert_promised(error, promised, n_ranks):
    """Compare an error with what the model says; a lone rank's own error is as it was raised."""
    kinds = tuple(synk.CollectiveMismatch if kind is Mismatch else kind for kind in promised.kinds)
    remote = isinstance(error, synk.RemoteError)
    as_promised = not remote if n_ranks == 1 else promised.on_ranks in (None, remote)
    if not isinstance(error, kinds) or not as_promised:
        raise AssertionError(f"{error!r} is not {promised}") from error


@dataclass
class Slot:
    """A Data, and what is to be in it."""

    data: synk.Data
    contents: np.ndarray


class Machine(RuleBasedStateMachine):
    """One run's shared variables, functions, sequences and Data, and the model; rules are in subclasses."""

    def __init__(self, n_ranks):
        super().__init__()
        self.n_ranks = n_ranks
        self.model = Model(n_ranks)
        self.variables = {}
        self.travelled = set()  # which variables the ranks have; the others are the master's alone
        self.warned = set()
        self.inputs = {
            name: pt.tensor(name, dtype=dtype, shape=shape) for name, (dtype, shape) in INPUTS.items()
        }
        self.functions = []  # (Recipe, Function)
        self.sequences = []  # (items, Function)
        self.slots = {}
        for name in TYPES:
            self.make(name, 3, 1)
        for slot, (dtype, ndim, minibatch) in DATA.items():
            value = sample((dtype, (4, 2)[:ndim], 1))
            self.slots[slot] = Slot(synk.data(value, minibatch=minibatch, name=slot), value)

    # --- both sides of a call ----------------------------------------------------------------------------

    def both(self, expect, do, names=()):
        """Do the same on both sides and compare; return whether it ended well.

        Parameters
        ----------
        expect, do : callable
            The model's part and synk's.
        names : iterable of str
            Shared variables that it sends to the ranks.
        """
        scale = self._scale()
        promised = expected = error = result = None
        try:
            expected = expect()
        except Promised as caught:
            promised = caught
        try:
            result = do()
        except Exception as caught:
            error = caught
        names = set(names) & set(TYPES)
        if promised is None:
            if error is not None:
                raise error
            assert_same(result, expected, max(scale, self._scale()))
        else:
            assert error is not None, f"{promised}, but it returned {result!r}"
            assert_promised(error, promised, self.n_ranks)
            for name in promised.undefined:
                self._set_everywhere(name)
        self.travelled |= names
        self.look(max(scale, self._scale()))
        return promised is None

    def look(self, scale=1.0):
        """Compare what every rank holds, and the contents of all Data, with the model."""
        names = sorted(self.travelled)
        held = [self.variables[name] for name in names]
        for rank in range(self.n_ranks) if names else ():
            values = tuple(self.model.values[name][rank] for name in names)
            assert_same(synk.get_value(rank, held), values, scale)
        for name, variable in self.variables.items():
            assert_same(variable.get_value(), self.model.values[name][0], scale)
        for slot in self.slots.values():
            assert_same(np.asarray(slot.data), slot.contents)
        for name in names:
            limit = LARGE.get(TYPES[name][0], np.inf)
            if not all((abs(value) < limit).all() for value in self.model.values[name]):
                self._set_everywhere(name)

    def _set_everywhere(self, name):
        value = np.ones_like(self.model.values[name][0])
        synk.broadcast(self.variables[name], value)
        self.model.put(name, value)

    def _scale(self):
        values = [value for of_ranks in self.model.values.values() for value in of_ranks]
        floats = [abs(value) for value in values if value.dtype.kind == "f"]
        return max([1.0, *(value.max(initial=0, where=np.isfinite(value)) for value in floats)])

    def make(self, name, length, seed):
        value = sample((TYPES[name][0], shape_of(TYPES[name][1], length), seed))
        self.variables[name] = pytensor.shared(value, name=name, shape=TYPES[name][1])
        self.model.put(name, value)
        self.travelled.discard(name)
        self.warned.discard(name)
