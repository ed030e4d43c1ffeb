"""Random graphs of rows, tables and parameters, whose exact results are compared with those of one process.

    seed -> RandomGraph: values, computed as they are made, for 7 and 12 rows -> definition -> `comparison`

``PYTHONPATH=tests python tests/support/exact/graphs.py --graphs 5000 --seed 0`` reports on so many.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from support.cases.choices import Choices, Unfit
from support.exact.pieces import PIECES
from support.exact.simulated import value_of
from synk.compile.programs.graphs.serialize import topological
from synk.compile.tables import array_funcify
from synk.exact.define import define
from synk.exact.definition import Definition

LENGTHS = (7, 12)  # rows for which values are known while a graph is made
LARGEST, MOST = 1e4, 2000  # of a value's elements, and how many

SCATTERED: dict[str, tuple[str, tuple[int, ...]]] = {
    "x": ("float64", (3,)),
    "z": ("float64", (4,)),
    "y": ("float64", ()),
    "t": ("float64", (2, 3)),
    "k": ("int64", ()),
    "ids": ("int64", (2,)),
    "mask": ("bool", ()),
}
BROADCAST: dict[str, tuple[str, tuple[int | str, ...]]] = {
    "b": ("float64", (3, 4)),
    "c": ("float64", (3,)),
    "d": ("float64", ()),
    "same": ("float64", ("rows", 3)),  # as many rows as are scattered
    "j": ("int64", ()),
}
SHARED: dict[str, tuple[str, tuple[int, ...]]] = {
    "w": ("float64", (3,)),
    "W": ("float64", (3, 4)),
    "table": ("float64", (5, 3)),
    "s": ("float64", ()),
    "steps": ("int64", ()),
}


class Value(NamedTuple):
    """A variable, and its value for each number of rows in `LENGTHS`."""

    variable: Variable
    arrays: tuple[Any, ...]

    @property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        """Return for each axis its lengths for all numbers of rows; only the axis of rows varies."""
        return tuple(zip(*(array.shape for array in self.arrays), strict=True))


def random_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], rough: bool = False) -> Any:
    """Return an array; a rough one has equal elements, as ties of extremes."""
    if dtype == "float64":
        values = rng.standard_normal(shape)
        return np.round(values * 2) / 2 if rough else np.asarray(values)
    return rng.integers(0, 5, shape) if dtype == "int64" else np.asarray(rng.random(shape) < 0.6)


class RandomGraph(Choices):
    """A graph of random pieces, with outputs and updates; ``seed`` determines all choices.

    Parameters
    ----------
    seed : sequence of int
    n_pieces : int
        How many pieces are tried.
    """

    lean = 1.7

    def __init__(self, seed: tuple[int, ...], n_pieces: int | None = None):
        self.seed = seed
        self.rng = rng = np.random.default_rng(seed)
        self.rough = self.chance(0.2)
        static = self.chance(0.5)
        chosen = [name for name in SCATTERED if self.chance(0.5)] or ["x"]
        self.scattered = [self._input(name, *SCATTERED[name], static) for name in chosen]
        self.bcast = [self._input(name, *BROADCAST[name], static) for name in BROADCAST if self.chance(0.4)]
        self.shared = [
            pytensor.shared(random_array(rng, dtype, shape), name=name, shape=shape if static else None)
            for name, (dtype, shape) in SHARED.items()
            if self.chance(0.6)
        ]
        self.known = Known([dict(zip(self.inputs, self.values(n), strict=True)) for n in LENGTHS])
        self.pool: list[Value] = []
        for variable in (*self.scattered, *self.bcast, *self.shared):
            self._add(variable)
        for _ in range(n_pieces or self.number(2, 14)):
            self._grow()
        self.definition = self._define()

    @property
    def inputs(self) -> list[Variable]:
        return [*self.scattered, *self.bcast]

    def values(self, n: int) -> list[Any]:
        """Return values of the inputs with so many rows."""
        rng = np.random.default_rng([*self.seed, n])
        arrays = [random_array(rng, one.type.dtype, self._shape(one, n), self.rough) for one in self.inputs]
        return [np.asarray(array, one.type.dtype) for array, one in zip(arrays, self.inputs, strict=True)]

    def _input(self, name: str, dtype: str, shape: tuple[Any, ...], static: bool) -> Variable:
        lengths = shape if name in BROADCAST else ("rows", *shape)
        return pt.tensor(
            name, dtype=dtype, shape=[one if static and one != "rows" else None for one in lengths]
        )

    def _shape(self, variable: Variable, n: int) -> tuple[int, ...]:
        if variable.name in SCATTERED:
            return (n, *SCATTERED[variable.name][1])
        return tuple(n if one == "rows" else one for one in BROADCAST[variable.name][1])

    # --- growing ---------------------------------------------------------------------------------------

    def _grow(self) -> None:
        makes, weights = list(PIECES), np.array(list(PIECES.values()), float)
        for _ in range(10):
            make = makes[self.rng.choice(len(makes), p=weights / weights.sum())]
            try:
                made = make(self)
            except (
                Unfit,
                TypeError,
                ValueError,
                IndexError,
                NotImplementedError,
                AttributeError,
                RuntimeError,
            ):
                continue  # PyTensor has its own reasons not to build a graph
            fit = [self._add(one) for one in (made if isinstance(made, list | tuple) else [made])]
            if any(fit):
                return

    def _add(self, variable: Variable) -> bool:
        """Compute a variable's values, and add it to the graph if other pieces may read it."""
        dtype = getattr(variable.type, "dtype", "")
        if not hasattr(variable.type, "ndim") or variable.type.ndim > 4 or dtype.startswith("complex"):
            return False
        try:
            arrays = self.known(variable)
        except Exception:
            return False
        sizes = [array.size for array in arrays]
        if not all(0 < size <= MOST for size in sizes):
            return False
        if not all(np.isfinite(array).all() and abs(array.astype(float)).max() < LARGEST for array in arrays):
            return False
        self.pool.append(Value(variable, tuple(arrays)))
        return True

    # --- what pieces ask for ---------------------------------------------------------------------------

    def shuffled(self, *values: Any) -> list[Any]:
        return [values[k] for k in self.rng.permutation(len(values))]

    def axes(self, x: Variable) -> Any:
        """Return axes to reduce: all, one, or several."""
        if self.chance(0.3):
            return None
        axes = [axis for axis in range(x.type.ndim) if self.chance(0.5)]
        return tuple(axes) if axes else self.axis(x)

    def axis(self, x: Variable) -> int:
        return self.number(0, x.type.ndim - 1)

    def _kind(self, dtype: str, ndims: tuple[int, ...]) -> Variable:
        return self._of(
            lambda value: (
                value.variable.type.dtype.startswith(dtype)
                and (not ndims or value.variable.type.ndim in ndims)
            )
        )

    def real(self, *ndims: int) -> Any:
        return self._kind("float", ndims)

    def whole(self, *ndims: int) -> Any:
        return self._kind("int", ndims)

    def truth(self, *ndims: int) -> Any:
        return self._kind("bool", ndims)

    def any(self, *ndims: int) -> Any:
        return self._kind("", ndims)

    def fitting(self, fits: Callable[[Any], bool]) -> Any:
        return self._of(lambda value: fits(value.variable))

    def labels(self, *ndims: int) -> Any:
        """Return integers from 0 to 4."""
        return self._of(
            lambda value: (
                value.variable.type.dtype == "int64"
                and (value.variable.type.ndim in ndims or not ndims)
                and all((array >= 0).all() and (array < 5).all() for array in value.arrays)
            )
        )

    def whole_number(self, below: int) -> Any:
        return abs(self.whole(0)) % below

    def dims(self, variable: Variable) -> tuple[tuple[int, ...], ...]:
        return next(value.dims for value in self.pool if value.variable is variable)

    def length(self, variable: Variable, axis: int) -> int | None:
        """Return the length of an axis, None where it depends on the rows."""
        lengths = set(self.dims(variable)[axis])
        return lengths.pop() if len(lengths) == 1 else None

    def same(self, x: Variable) -> Any:
        """Return real numbers of the same shape."""
        return self._of(lambda value: value.variable.type.dtype == "float64" and value.dims == self.dims(x))

    def near(self, x: Variable, dtype: str = "float") -> Any:
        """Return a value that meets another element by element: of its shape, or of one that widens to it."""
        dims = self.dims(x)

        def fits(value: Value) -> bool:
            tail = dims[len(dims) - len(value.dims) :] if len(value.dims) <= len(dims) else None
            single = value.variable.type.broadcastable
            return (
                value.variable.type.dtype.startswith(dtype)
                and tail is not None
                and all(
                    one == other or alone for one, other, alone in zip(value.dims, tail, single, strict=True)
                )
            )

        return self._of(fits)

    def leaves(self, cost: Variable) -> list[Variable]:
        """Return a parameter and an input that a cost depends on."""
        own = set(ancestors([cost]))
        found = [one for one in (*self.scattered, *self.bcast, *self.shared) if one in own]
        found = [one for one in found if one.type.dtype == "float64"]
        if not found:
            raise Unfit
        return self.shuffled(*found)[:2]

    # --- the whole ---------------------------------------------------------------------------------------

    def _define(self) -> Definition:
        made = [value.variable for value in self.pool if value.variable.owner is not None]
        made = made or [self.scattered[0] * 2]
        outputs = [made[-1], *(self.one_of(made) for _ in range(self.number(0, 2)))]
        return define(
            "fuzzed",
            self.scattered,
            list(dict.fromkeys(outputs)),
            bcast_inputs=self.bcast,
            updates=list(self._updates()),
            on_unused_input="ignore",
        )

    def _updates(self) -> Iterator[tuple[Any, Any]]:
        for shared in self.shared:
            if not self.chance(0.4):
                continue
            lengths = tuple((one, one) for one in shared.get_value(borrow=True).shape)
            fit = [
                value.variable
                for value in self.pool
                if value.variable is not shared
                and value.dims == lengths
                and value.variable.type.dtype == shared.type.dtype
            ]
            if fit:
                step = self.one_of(fit)
                yield (
                    shared,
                    self.one_of([shared - 0.1 * step, shared + step, step]).astype(shared.type.dtype),
                )


class Known:
    """The values of variables for several numbers of rows, each computed once, when it is first read."""

    def __init__(self, given: Sequence[Mapping[Variable, Any]]):
        self._of = [dict(one) for one in given]

    def __call__(self, variable: Variable) -> list[Any]:
        first = self._of[0]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for node in topological([variable]) if variable not in first else ():
                if all(output in first for output in node.outputs):
                    continue
                run = array_funcify(node.op, node, np)
                for known in self._of:
                    results = run(*[self._given(one, known) for one in node.inputs])
                    results = results if len(node.outputs) > 1 else (results,)
                    known.update(zip(node.outputs, results, strict=True))
        return [np.asarray(self._given(variable, known)) for known in self._of]

    @staticmethod
    def _given(variable: Variable, known: Mapping[Variable, Any]) -> Any:
        return known[variable] if variable in known else value_of(variable)


if __name__ == "__main__":
    from support.exact.comparison import main

    main()
