"""Random small graphs for regions: all dtypes, up to four axes, and what lies in memory in every way.

seed -> SmallGraph: inputs and shared variables -> pieces, each computed as it is made -> outputs, updates
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scan.op import Scan

from support.cases.choices import Choices, Unfit, weighted
from support.exact.graphs import Known
from support.regions.arrays import FLOATS, INTEGERS, random_array
from support.regions.exactness import EXACT, WHOLE, levels_of
from synk.compile.programs.graphs.serialize import topological

LENGTHS = {"n": 5, "m": 3, "k": 4, "one": 1, "big": 300}  # when the graph is made; ``n`` changes
ROWS = (5, 8, 0, 1)  # of ``n``, for one call after the other
MOST = 20000  # elements of a value
LARGE = 2.0**11  # whole numbers below it may be summed and multiplied in float32 still
PIECES: dict[Callable[..., Any], int] = {}
piece = weighted(PIECES)


class Value(NamedTuple):
    """A variable, its value in the first call, and its level of exactness."""

    variable: Variable
    array: Any
    level: int


class SmallGraph(Choices):
    """A graph of a few random pieces.

    Attributes
    ----------
    inputs, shared : list of Variable
    outputs : list of Variable
    updates : list of (Variable, Variable)
    start : dict
        Of each input and shared variable, how exact its values are.
    """

    def __init__(self, seed: tuple[int, ...]):
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.kind = str(self.rng.choice(["whole", "any"], p=[0.4, 0.6]))
        self.static = self.chance(0.4)
        self.axes: dict[Variable, tuple[str, ...]] = {}
        self.inputs = [self._leaf(f"x{k}", False) for k in range(self.number(1, 4))]
        self.shared = [self._leaf(f"s{k}", True) for k in range(self.number(0, 2))]
        level = WHOLE if self.kind == "whole" else EXACT
        self.start = {
            one: level if one.type.dtype in FLOATS else WHOLE for one in (*self.inputs, *self.shared)
        }
        first = self.values(0, "plain")
        self.known = Known([dict(zip((*self.inputs, *self.shared), first, strict=True))])
        self.levels = dict(self.start)
        self.wanted: list[Variable] = []  # which pieces would have returned together
        self.pool: list[Value] = [
            Value(one, np.asarray(array), self.start[one])
            for one, array in zip(self.start, first, strict=True)
        ]
        for _ in range(self.number(1, 6)):
            self._grow()
        made = [value.variable for value in self.pool if value.variable.owner is not None]
        made = made or [self.inputs[0].copy()]
        self.outputs = list(dict.fromkeys([made[-1], *(self.one_of(made) for _ in range(self.number(0, 3)))]))
        if self.chance(0.5):
            self.outputs = list(dict.fromkeys([*self.outputs, *(v for v in self.wanted if v in made)]))[:6]
        if self.chance(0.05):
            self.outputs.append(self.one_of(self.inputs))
        self.updates = list(self._updates())

    def _leaf(self, name: str, shared: bool) -> Variable:
        dtype = self.one_of(["float64"] * 8 + ["float32"] * 3 + ["int64"] * 3 + ["bool", *INTEGERS])
        axes = [
            self.one_of(["n", "n", "m", "k", "one"]) for _ in range(self.one_of([0, 1, 1, 2, 2, 2, 3, 4]))
        ]
        if self.chance(0.1):
            axes = ["big"]
        shape = [
            LENGTHS[one] if one == "one" or (one != "n" and (self.static or shared)) else None for one in axes
        ]
        if shared:
            zeros = np.zeros([LENGTHS[one] for one in axes], dtype)
            variable = pytensor.shared(zeros, name=name, shape=tuple(shape))
        else:
            variable = pt.tensor(name, dtype=dtype, shape=shape)
        self.axes[variable] = tuple(axes)
        return variable

    def values(self, call: int, kind: str) -> list[Any]:
        """Return values of inputs and shared variables; ``kind`` may be "special"."""
        rng = np.random.default_rng([*self.seed, call])
        lengths = LENGTHS | {"n": ROWS[call % len(ROWS)]}
        kind = "special" if kind == "special" and self.kind == "any" else self.kind
        return [
            random_array(rng, one.type.dtype, tuple(lengths[axis] for axis in self.axes[one]), kind)
            for one in (*self.inputs, *self.shared)
        ]

    # --- growing ---------------------------------------------------------------------------------------

    def _grow(self) -> None:
        makes, weights = list(PIECES), np.array(list(PIECES.values()), float)
        for _ in range(6):
            make = makes[self.rng.choice(len(makes), p=weights / weights.sum())]
            try:
                made = make(self)
            except (Unfit, TypeError, ValueError, IndexError, NotImplementedError, AttributeError):
                continue  # PyTensor has its own reasons not to build a graph
            fit = [self._add(one) for one in (made if isinstance(made, list | tuple) else [made])]
            if any(fit):
                return

    def _add(self, variable: Variable) -> bool:
        dtype = getattr(variable.type, "dtype", "")
        if not hasattr(variable.type, "ndim") or variable.type.ndim > 4 or dtype.startswith("complex"):
            return False
        if dtype not in ("bool", *FLOATS, *INTEGERS):
            return False
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (array,) = self.known(variable)
        except Exception as error:
            # Sometimes both are to say so.
            if not isinstance(error, IndexError | ValueError) or self.chance(0.9):
                return False
            array = None
        self.levels = levels_of([variable], self.levels)
        if array is None:
            self.pool.append(Value(variable, np.zeros([1] * variable.type.ndim), self.levels[variable]))
            return True
        if array.size > MOST:
            return False
        summed = self.kind == "whole" and dtype in FLOATS and self.levels[variable] == WHOLE
        if summed and not (abs(array) <= LARGE).all():
            return False
        self.pool.append(Value(variable, array, self.levels[variable]))
        return True

    @property
    def has_loops(self) -> bool:
        return any(isinstance(node.op, Scan) for node in topological(self.outputs))

    def _updates(self) -> Iterator[tuple[Variable, Variable]]:
        for shared in self.shared:
            if not self.chance(0.7):
                continue
            shape = tuple(LENGTHS[axis] for axis in self.axes[shared])
            fit = [
                value.variable
                for value in self.pool
                if value.variable is not shared
                and value.array.shape == shape
                and value.variable.type.dtype == shared.type.dtype
            ]
            new = self.one_of([*fit, shared * 2, shared + 1]) if fit else shared * 2
            if fit and self.chance(0.5):
                new = self.one_of(
                    [shared + new, shared - new if shared.type.dtype != "bool" else shared * new]
                )
            if self.chance(0.3) and shared.type.ndim:
                new = self.one_of([new[::-1], pt.set_subtensor(new[0], 1)])
            if new.type.dtype != shared.type.dtype:
                new = new.astype(shared.type.dtype)
            if shared.type.is_super(new.type):
                yield shared, new

    # --- what pieces ask for ---------------------------------------------------------------------------

    def value(self, variable: Variable) -> Value:
        for value in self.pool:
            if value.variable is variable:
                return value
        raise Unfit

    def any(self, *ndims: int) -> Any:
        return self._of(lambda value: not ndims or value.variable.type.ndim in ndims)

    def real(self, *ndims: int) -> Any:
        return self._of(
            lambda v: v.variable.type.dtype in FLOATS and (not ndims or v.variable.type.ndim in ndims)
        )

    def whole(self, *ndims: int) -> Any:
        return self._of(
            lambda v: (
                v.variable.type.dtype in INTEGERS
                and v.level <= EXACT
                and (not ndims or v.variable.type.ndim in ndims)
            )
        )

    def exact(self) -> Any:
        """Return a variable that may be a condition: it is exact."""
        return self._of(lambda value: value.level <= EXACT)

    def truth(self) -> Any:
        return self._of(lambda v: v.variable.type.dtype == "bool" and v.level <= EXACT)

    def near(self, x: Variable, fits: Callable[[Value], bool] = lambda value: True) -> Any:
        """Return a variable for an elementwise Op with another: its shape broadcasts with that one's."""
        shape = self.value(x).array.shape

        def meets(value: Value) -> bool:
            own = value.array.shape
            alone = value.variable.type.broadcastable
            tail = shape[len(shape) - len(own) :]
            return (
                len(own) <= len(shape)
                and all(a == b or (one and a == 1) for a, b, one in zip(own, tail, alone, strict=True))
                and fits(value)
            )

        return self._of(meets)

    def same(self, x: Variable) -> Any:
        """Return a variable of the same shape and dtype."""
        own = self.value(x)
        return self._of(lambda v: v.array.shape == own.array.shape and v.variable.type.dtype == x.type.dtype)

    def shape(self, x: Variable) -> tuple[int, ...]:
        return self.value(x).array.shape

    def rows(self, length: int) -> Any:
        """Return positions that are seldom out of range: an input's, or constant."""
        dtype = self.one_of(["int64", "int64", "int32", "int8", "uint8"])
        low = 0 if dtype[0] == "u" else -length
        high = length + (1 if self.chance(0.05) else 0)
        numbers = self.rng.integers(low, max(high, low + 1), self.number(0, 6)).astype(dtype)
        if self.chance(0.5):
            return pt.constant(numbers)
        whole = self.whole(1).astype("int64" if self.chance(0.7) else "int32")
        return whole % max(length, 1) - (length if self.chance(0.3) else 0)
