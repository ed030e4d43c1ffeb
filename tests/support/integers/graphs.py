"""Random graphs of integers and truth values, which NumPy computes too, one operation after another.

seed -> IntegerGraph: leaves -> steps, each a function of variables and the same of arrays -> outputs, updates

Neither PyTensor's Ops nor its rewrites have a part in what NumPy computes: only the dtypes that what computes
declares are PyTensor's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from support.cases.choices import Choices, Unfit

NARROW = ("bool", "int8", "uint8", "int16", "uint16", "int32")
DTYPES = ("bool", "bool", "int8", "uint8", "int16", "int32", "int64", "float64")
ROWS = (7, 1, 12)
TABLE, COLUMNS = 4, 3  # lengths that no call changes
MOST = 400  # elements
Function = Callable[..., Any]


class Step(NamedTuple):
    """One operation on variables, and on arrays."""

    name: str
    symbolic: Function
    numeric: Function
    keeps: bool = False  # it moves numbers, in the dtype that they have
    exact: bool = True  # else floats are rounded


class Value(NamedTuple):
    """A variable, and the value that NumPy computes for each number of rows."""

    variable: Any
    arrays: tuple[Any, ...]
    exact: bool
    text: str


class IntegerGraph(Choices):
    """A graph of a few random steps.

    Attributes
    ----------
    inputs, bcast, shared : list of Variable
        Scattered inputs, broadcast inputs, shared variables.
    outputs : list of Value
    updates : list of (Variable, Value)
    """

    def __init__(self, seed: tuple[int, ...]):
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.pool: list[Value] = []
        n = self.number(1, 3)
        self.inputs = [self._leaf(f"x{k}", self.one_of([1, 1, 2]), True).variable for k in range(n)]
        self.inputs.append(self._leaf("at", 1, True, "int64", (0, TABLE)).variable)
        self.bcast = [
            self._leaf(f"b{k}", self.one_of([1, 2]), False).variable for k in range(self.number(0, 1))
        ]
        leaves = list(self.pool)
        self.shared = []
        if self.chance(0.5):
            table = self._leaf("table", self.one_of([1, 2]), False)
            variable = pytensor.shared(np.array(table.arrays[0]), name="table")
            leaves.append(table._replace(variable=variable))
            self.pool[-1] = leaves[-1]
            self.shared = [variable]
        self.leaves = leaves
        for _ in range(self.number(2, 6)):
            self._grow()
        made = self.pool[len(leaves) :] or leaves[:1]
        self.outputs = [made[-1], *(self.one_of(made) for _ in range(self.number(0, 2)))]
        self.updates = [
            (one, self.one_of(fit))
            for one in self.shared
            if (
                fit := [
                    v for v in made if v.variable.type.dtype == one.type.dtype and v.exact and fits(v, one)
                ]
            )
        ]

    def values(self, call: int, variables: list[Variable]) -> list[Any]:
        """Return the values of inputs or shared variables in a call."""
        known = {id(value.variable): value for value in self.leaves}
        return [np.array(known[id(one)].arrays[call]) for one in variables]

    def expected(self, call: int) -> list[tuple[Any, bool]]:
        """Return outputs and new values as NumPy computes them, and whether they are exact."""
        found = [(one.arrays[call], one.exact) for one in self.outputs]
        return found + [(one.arrays[call].astype(v.type.dtype), True) for v, one in self.updates]

    def _leaf(
        self, name: str, ndim: int, rows: bool, dtype: str = "", bounds: tuple[int, int] | None = None
    ) -> Value:
        dtype = dtype or self.one_of(DTYPES)
        arrays = []
        for n in ROWS if rows else [TABLE] * len(ROWS):
            shape = (n, COLUMNS)[:ndim]
            arrays.append(self._numbers(dtype, shape, bounds) if rows or not arrays else arrays[0])
        variable = pt.tensor(name, dtype=dtype, shape=(None,) * ndim)
        self.pool.append(
            Value(variable, tuple(arrays), True, f"{name}: {dtype}{'[rows]' if rows else ''} {ndim}-d")
        )
        return self.pool[-1]

    def _numbers(self, dtype: str, shape: Any, bounds: tuple[int, int] | None) -> Any:
        if dtype == "bool":
            return self.rng.random(shape) < 0.6
        low, high = bounds or self.one_of([(0, 4), (-5, 6), (-128, 128), (0, 256)])
        if dtype != "float64":
            low, high = max(low, np.iinfo(dtype).min), min(high, np.iinfo(dtype).max)
        return self.rng.integers(low, high, shape).astype(dtype)

    # --- growing ---------------------------------------------------------------------------------------

    def _grow(self) -> None:
        for _ in range(8):
            try:
                step, given = self.one_of(STEPS)(self)
                self._add(step, given)
            except (Unfit, TypeError, ValueError, IndexError, NotImplementedError, OverflowError):
                continue  # neither library takes everything
            return

    def _add(self, step: Step, given: list[Value]) -> None:
        if not step.exact and not all(one.exact for one in given):
            raise Unfit
        variable = step.symbolic(*(one.variable for one in given))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            arrays = [
                np.asarray(step.numeric(*(one.arrays[call] for one in given))) for call in range(len(ROWS))
            ]
        declared = variable.type.dtype
        if not step.keeps:
            arrays = [array.astype(declared) for array in arrays]
        exact = step.exact and all(one.exact for one in given)
        sizes = max(array.size for array in arrays)
        if (
            any(array.ndim != variable.type.ndim for array in arrays)
            or variable.type.ndim > 2
            or sizes > MOST
        ):
            raise Unfit
        if any(array.dtype.kind in "fc" and not (np.abs(array) < 2.0**50).all() for array in arrays):
            raise Unfit  # a float that is no whole number any more, an infinity, NaN
        text = f"{step.name}({', '.join(one.text.split(':')[0] for one in given)})"
        self.pool.append(Value(variable, tuple(arrays), exact, f"v{len(self.pool)}: {declared} = {text}"))

    def text(self) -> str:
        """Return all lines of the graph."""
        return "\n".join(f"    {value.text}" for value in self.pool)

    # --- what steps ask for ----------------------------------------------------------------------------

    def array(self, *kinds: str) -> Value:
        return self.some(lambda v: v.variable.type.ndim > 0 and is_of(v, *kinds))

    def like(self, value: Value, *kinds: str) -> Value:
        """Return a value that broadcasts with another."""
        return self.some(
            lambda v: (
                is_of(v, *kinds)
                and all(
                    one.shape[-other.ndim :] == other.shape[-one.ndim :] or not one.ndim * other.ndim
                    for one, other in zip(v.arrays, value.arrays, strict=True)
                )
            )
        )


def is_of(value: Value, *kinds: str) -> bool:
    """Return whether a value has one of these kinds of dtypes, and is exact if it must be."""
    return not kinds or (value.exact and value.arrays[0].dtype.kind in kinds)


def fits(value: Value, variable: Any) -> bool:
    """Return whether a value may update a shared variable: its shape fits for any number of rows."""
    return all(array.shape == variable.get_value(borrow=True).shape for array in value.arrays)


# --- steps -----------------------------------------------------------------------------------------------

STEPS: list[Callable[[IntegerGraph], tuple[Step, list[Value]]]] = []


def step(weight: int = 1) -> Callable[[Any], Any]:
    """Register a maker of steps, so many times."""

    def register(make: Any) -> Any:
        STEPS.extend([make] * weight)
        return make

    return register


@step(6)
def running(graph):
    """A running sum or product, whose dtype is NumPy's."""
    x = graph.array("b", "i", "u")
    name = graph.one_of(["cumsum", "cumsum", "cumprod"])
    axis = graph.one_of([None, *range(x.variable.type.ndim)])
    return Step(
        f"{name} {axis}",
        lambda x: getattr(pt, name)(x, axis=axis),
        lambda x: getattr(np, name)(x, axis=axis),
        keeps=True,
    ), [x]


@step(2)
def difference(graph):
    x = graph.array("i", "u")
    axis = graph.number(0, x.variable.type.ndim - 1)
    if x.variable.type.dtype != str(x.arrays[0].dtype):
        raise Unfit
    return Step(f"diff {axis}", lambda x: pt.diff(x, axis=axis), lambda x: np.diff(x, axis=axis)), [x]


BINARY = {
    "+": (np.add, "biu", lambda a, b: a + b),
    "-": (np.subtract, "iu", lambda a, b: a - b),
    "*": (np.multiply, "biu", lambda a, b: a * b),
    "&": (np.bitwise_and, "b", lambda a, b: a & b),
    "|": (np.bitwise_or, "iu", lambda a, b: a | b),
    "^": (np.bitwise_xor, "iu", lambda a, b: a ^ b),
    "max": (np.maximum, "biuf", pt.maximum),
    "min": (np.minimum, "biuf", pt.minimum),
    "<": (np.less, "biuf", pt.lt),
    ">=": (np.greater_equal, "biuf", pt.ge),
    "==": (np.equal, "biuf", pt.eq),
}


@step(6)
def binary(graph):
    name = graph.one_of(list(BINARY))
    numeric, kinds, symbolic = BINARY[name]
    a = graph.some(lambda v: is_of(v, *kinds))
    b = graph.like(a, *kinds)
    both = {str(one.arrays[0].dtype) for one in (a, b)}
    if "uint64" in both and len(both) > 1:
        raise Unfit  # NumPy takes floats for that
    return Step(name, symbolic, numeric), [a, b]


@step(4)
def with_number(graph):
    """A number on the right: powers, divisions, remainders, shifts."""
    x = graph.some(lambda v: is_of(v, "i", "u"))
    dtype = x.variable.type.dtype
    name, number = graph.one_of(
        [
            ("**", 2),
            ("**", 3),
            ("//", 3),
            ("//", -2),
            ("%", 3),
            ("%", -4),
            ("<<", 2),
            (">>", 1),
            ("*", 5),
            ("+", 100),
        ]
    )
    if (number < 0 and dtype[0] == "u") or str(x.arrays[0].dtype) == "uint64":
        raise Unfit
    apply = {
        "**": lambda x, k: x**k,
        "//": lambda x, k: x // k,
        "%": lambda x, k: x % k,
        "<<": lambda x, k: x << k,
        ">>": lambda x, k: x >> k,
        "*": lambda x, k: x * k,
        "+": lambda x, k: x + k,
    }[name]
    declared = apply(x.variable, np.int8(number)).type.dtype

    def numeric(x):
        wide = np.result_type(x.dtype, declared)
        return apply(x.astype(wide), wide.type(number))

    return Step(f"{name} {number}", lambda x: apply(x, np.int8(number)), numeric), [x]


@step(3)
def unary(graph):
    name, kinds, symbolic, numeric = graph.one_of(
        [
            ("neg", "i", lambda x: -x, np.negative),
            ("abs", "iu", abs, np.abs),
            ("sign", "i", pt.sign, np.sign),
            ("not", "b", lambda x: ~x, np.logical_not),
            ("sqr", "iu", pt.sqr, np.square),
            ("positive", "iuf", lambda x: x > 0, lambda x: x > 0),
            ("half", "biuf", lambda x: x * 0.5, lambda x: x * 0.5),
            ("clip", "i", lambda x: pt.clip(x, -3, 5), lambda x: np.clip(x, -3, 5)),
        ]
    )
    return Step(name, symbolic, numeric), [graph.some(lambda v: is_of(v, *kinds))]


@step(2)
def converted(graph):
    dtype = graph.one_of([*NARROW, "int64", "float64"])
    x = graph.some(lambda v: is_of(v, "b", "i", "u"))
    if x.variable.type.dtype == dtype:
        return Step(f"to {dtype}", lambda x: x.astype(dtype), lambda x: x, keeps=True), [x]  # no Op at all
    return Step(f"to {dtype}", lambda x: x.astype(dtype), lambda x: x.astype(dtype)), [x]


@step(2)
def chosen(graph):
    a = graph.some(lambda v: is_of(v, "i", "u", "f"))
    condition, b = graph.like(a, "b"), graph.like(a, "i", "u", "f")
    return Step("switch", pt.switch, np.where), [condition, a, b]


@step(4)
def reduced(graph):
    name = graph.one_of(["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "mean"])
    kinds = {"any": "b", "all": "b", "max": "iuf", "min": "iuf"}.get(name, "biu")
    x = graph.array(*kinds)
    if name in ("max", "argmax") and x.text.split(" = ")[-1].startswith("neg"):
        raise Unfit  # PyTensor writes a minimum so, of which the lowest number is one
    axis = graph.one_of([None, *range(x.variable.type.ndim)])
    declared = x.variable.type.dtype

    def numeric(x):
        return getattr(np, name)(x.astype(declared) if name in ("max", "min") else x, axis=axis)

    return Step(f"{name} {axis}", lambda x: getattr(x, name)(axis=axis), numeric, exact=name != "mean"), [x]


@step(4)
def reduced_narrowly(graph):
    """A sum or a product in a narrow dtype, or of values that wrap around: multiples, negatives."""
    name = graph.one_of(["sum", "prod"])
    x = graph.array("i", "u")
    declared = x.variable.type.dtype
    if declared != str(x.arrays[0].dtype):
        raise Unfit
    axis, factor = graph.number(0, x.variable.type.ndim - 1), np.array(graph.number(2, 5), declared)
    before = graph.one_of([lambda x: x, lambda x: x * factor, lambda x: -x])
    dtype = graph.one_of([None, declared])
    return Step(
        f"{name} {axis} in {dtype}",
        lambda x: getattr(before(x), name)(axis=axis, dtype=dtype),
        lambda x: getattr(before(x), name)(axis=axis, dtype=dtype),
    ), [x]


@step(3)
def moved(graph):
    x = graph.array()
    name, function = graph.one_of(
        [
            ("[::-1]", lambda x: x[::-1]),
            ("[1:]", lambda x: x[1:]),
            ("[::2]", lambda x: x[::2]),
            ("[-1]", lambda x: x[-1]),
            ("[0]", lambda x: x[0]),
            (".T", lambda x: x.T),
            ("[:, None]", lambda x: x[:, None] if x.ndim == 1 else x[:, :2]),
            ("ravel", lambda x: x.ravel() if isinstance(x, np.ndarray) else x.flatten()),
        ]
    )
    return Step(name, function, function, keeps=True), [x]


@step(2)
def sorted_rows(graph):
    x = graph.array("b", "i", "u")
    if graph.chance(0.5):
        return Step("sort", lambda x: pt.sort(x, axis=0), lambda x: np.sort(x, axis=0), keeps=True), [x]
    return Step(
        "argsort",
        lambda x: pt.argsort(x, axis=0, kind="stable"),
        lambda x: np.argsort(x, axis=0, kind="stable"),
    ), [x]


def _positions(graph):
    """Return whole numbers, with which to index a table: many are repeated."""
    return graph.some(
        lambda v: is_of(v, "i") and v.variable.type.ndim == 1 and v.variable.type.dtype == "int64"
    )


def _table(graph):
    return graph.some(
        lambda v: (
            v.variable.type.ndim > 0
            and all(len(one) == TABLE for one in v.arrays)
            and is_of(v, "i", "u", "f")
        )
    )


@step(4)
def looked_up(graph):
    """Rows of a table by repeated positions."""
    return Step(
        "look up",
        lambda table, at: table[at % TABLE],
        lambda table, at: table[at % TABLE],
        keeps=True,
    ), [_table(graph), _positions(graph)]


@step(5)
def added_at(graph):
    """Numbers added to a table at repeated positions, each time."""
    at = _positions(graph)
    added = graph.some(
        lambda v: (
            is_of(v, "i", "u", "b")
            and v.variable.type.ndim == 1
            and all(len(a) == len(b) for a, b in zip(v.arrays, at.arrays, strict=True))
        )
    )
    dtype = graph.one_of(["int64", "int32", "int8", "uint8"])

    def numeric(at, added):
        table = np.zeros(TABLE, dtype)
        np.add.at(table, at % TABLE, added.astype(dtype))
        return table

    def symbolic(at, added):
        return pt.inc_subtensor(pt.zeros(TABLE, dtype=dtype)[at % TABLE], added.astype(dtype))

    return Step(f"add at, {dtype}", symbolic, numeric), [at, added]


@step(3)
def put_at(graph):
    """Numbers put into a table at repeated positions: the last one stays."""
    table, at, number = _table(graph), _positions(graph), graph.number(1, 9)
    relative = graph.chance(0.5)  # each row plus a number: once, however often it is picked

    def new(table, at, one_of):
        return table[at % TABLE] + one_of(number)

    def numeric(table, at):
        table = table.copy()
        table[at % TABLE] = new(table, at, table.dtype.type) if relative else number
        return table

    def symbolic(table, at):
        kind = np.dtype(table.type.dtype).type
        return pt.set_subtensor(table[at % TABLE], new(table, at, kind) if relative else kind(number))

    if table.variable.type.dtype != str(table.arrays[0].dtype):
        raise Unfit
    return Step(f"put at{', plus' if relative else ''} {number}", symbolic, numeric), [table, at]


@step(2)
def counted(graph):
    at = _positions(graph)
    if any(array.size == 0 for array in at.arrays):
        raise Unfit  # PyTensor takes the largest of none for the length, which is an error in one process too
    return Step(
        "bincount",
        lambda at: pt.bincount(at % TABLE, minlength=TABLE),
        lambda at: np.bincount(at % TABLE, minlength=TABLE),
    ), [at]


@step(2)
def multiplied(graph):
    a = graph.array("i", "u")
    b = graph.some(
        lambda v: (
            is_of(v, "i", "u")
            and v.variable.type.ndim == 1
            and all(x.shape[-1] == y.shape[0] for x, y in zip(a.arrays, v.arrays, strict=True))
        )
    )
    return Step("dot", pt.dot, np.dot, keeps=True), [a, b]


@step(1)
def repeated(graph):
    x = graph.array()
    return Step("repeat", lambda x: pt.repeat(x, 2, axis=0), lambda x: np.repeat(x, 2, axis=0), keeps=True), [
        x
    ]


@step(1)
def joined(graph):
    a = graph.array("b", "i", "u")
    b = graph.some(
        lambda v: (
            v.variable.type.ndim == a.variable.type.ndim
            and v.arrays[0].dtype == a.arrays[0].dtype
            and v.variable.type.dtype == a.variable.type.dtype
            and all(x.shape[1:] == y.shape[1:] for x, y in zip(a.arrays, v.arrays, strict=True))
        )
    )
    return Step(
        "join", lambda a, b: pt.concatenate([a, b]), lambda a, b: np.concatenate([a, b]), keeps=True
    ), [a, b]
