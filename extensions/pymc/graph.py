"""The log-density of a model and its gradient as one graph of one vector.

Model -> frozen, its data as constants -> Layout of the free variables in a vector
                                       -> log_density -> pieces_of it -> of_vector -> joined
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import MakeVector, ScalarFromTensor
from pytensor.tensor.math import All
from pytensor.tensor.random.type import RandomType

from synk.compile import LEFT_OUT
from synk.extensions.pymc.rebuild import rebuilt

SIMPLIFIED = ("canonicalize", "stabilize")


@dataclass(frozen=True)
class Layout:
    """The unconstrained values of all free variables, one after the other in a vector."""

    names: tuple[str, ...]  # as PyMC names values: "sigma_log__"
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return sum(map(prod, self.shapes))

    def slices(self) -> list[slice]:
        """Return the slice of the vector in which each variable lies."""
        edges = accumulate(map(prod, self.shapes), initial=0)
        return [slice(start, stop) for start, stop in pairwise(edges)]

    def split(self, vector: Any) -> dict[str, Any]:
        """Return the variables of a vector, or of PyTensor's variable for one."""
        parts = zip(self.names, self.slices(), self.shapes, self.dtypes, strict=True)
        return {name: vector[part].reshape(shape).astype(dtype) for name, part, shape, dtype in parts}

    def join(self, point: dict[str, Any]) -> np.ndarray:
        """Return the vector of a point of PyMC."""
        missing = sorted(set(self.names) - set(point))
        if missing:
            raise KeyError(f"the point has no {', '.join(missing)}; it needs {', '.join(self.names)}")
        values = [np.asarray(point[name], dtype="float64").ravel() for name in self.names]
        return np.concatenate(values) if values else np.zeros(0)


def frozen(model: Any) -> Any:
    """Return a copy of a model in which data and lengths are constants.

    Raises NotImplementedError if the model has discrete variables, and so no gradient.
    """
    discrete = [rv.name for rv in model.free_RVs if rv.dtype not in pm.vartypes.continuous_types]
    if discrete:
        raise NotImplementedError(
            f"{', '.join(discrete)}: discrete variables have no gradient; sum over them in the model "
            "(pm.Mixture), or use pm.sample"
        )
    made = freeze_dims_and_data(model)
    order = {rv.name: position for position, rv in enumerate(model.free_RVs)}
    made.free_RVs.sort(key=lambda rv: order[rv.name])
    return made


def _check_numbers(total: Variable) -> None:
    """Raise ValueError if a constant of the graph has some NaN."""
    for constant in constants([total]):
        is_float = constant.data.dtype.kind == "f"  # set_data masks NaN
        bad = np.isnan(np.ma.filled(constant.data, np.nan)) if is_float else np.zeros(0, bool)
        if bad.any() and not bad.all():  # all NaN is meant so: for a branch that is not taken
            place = tuple(map(int, np.argwhere(bad)[0]))
            raise ValueError(
                f"{constant.name or 'an array'} of shape {constant.data.shape} has {bad.sum()} NaN, the "
                f"first at {place}: the log-density would be NaN everywhere. Leave these rows out; PyMC "
                "imputes NaN in observed values only"
            )


def layout_of(model: Any, point: dict[str, Any]) -> Layout:
    """Return how the free variables of a model lie in a vector; `point` is one of its points."""
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    return Layout(
        names=tuple(value.name for value in values),
        shapes=tuple(np.shape(point[value.name]) for value in values),
        dtypes=tuple(value.dtype for value in values),
    )


def log_density(model: Any, factors: Sequence[Any] | None = None, jacobian: bool = True) -> Variable:
    """Return the log-density of a frozen model, or that of some of its variables, as a scalar."""
    broken: list[Variable] = []
    try:
        written = model.logp(factors, jacobian=jacobian)
    except ValueError as error:
        named = ", ".join(_without_density(model)) or "the model"
        raise ValueError(f"{named}: data and parameters do not fit each other: {error}") from error
    (total,) = rebuilt([written], partial(by_rows, broken=broken))
    total = sum(broken, start=total)
    if any(isinstance(one.type, RandomType) for one in ancestors([total])):
        raise NotImplementedError(
            "the log-density draws random numbers, as with pm.Minibatch, so it is another at each "
            "evaluation; give the model all rows: shard= splits them over the ranks"
        )
    _check_numbers(total)
    return total


def _without_density(model: Any) -> Iterator[str]:
    """Yield the variables whose density cannot be written."""
    for rv in model.basic_RVs:
        try:
            pm.logp(rv, model.rvs_to_values[rv] if rv in model.observed_RVs else rv.type())
        except ValueError:
            yield repr(rv.name)


def by_rows(node: Apply, inputs: list[Any], broken: list[Variable]) -> list[Variable] | None:
    """Let each element of a term be -inf where its own parameters are out of bounds.

    PyMC's check tests the parameters of all elements at once, so ranks would need a collective. A sum that
    is -inf if any parameter is out of bounds goes to `broken`. It makes the log-density -inf, as PyMC's
    is, even where the other elements of a mixture, for example, would keep it finite.
    """
    if not isinstance(node.op, CheckParameterValue):
        return None
    term, *conditions = inputs
    for condition in (part for one in conditions for part in _conjuncts(one)):
        by_row = condition.all(axis=tuple(range(term.type.ndim, condition.type.ndim)))
        if fits := by_row.type.ndim > 0 and _broadcasts(by_row.type.shape, term.type.shape):
            broken.append(pt.switch(by_row, 0.0, -np.inf).sum())
        term = pt.switch(by_row if fits else condition.all(), term, -np.inf).astype(term.dtype)
    return [term]


def _conjuncts(condition: Any) -> list[Any]:
    """Return the arrays whose elements must all be true for a condition to be true."""
    node = condition.owner
    if node is None:
        return [pt.as_tensor(condition)]
    if isinstance(node.op, MakeVector):
        return [part for one in node.inputs for part in _conjuncts(one)]
    if isinstance(node.op, All | ScalarFromTensor):
        return _conjuncts(node.inputs[0])
    return [condition]


def _broadcasts(shape: Sequence[Any], to: Sequence[Any]) -> bool:
    """Tell whether an array is known to broadcast to a shape."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return all(one == 1 or (one is not None and one == other) for one, other in pairs)


def pieces_of(total: Variable, model: Any) -> list[Variable]:
    """Return the graphs of a log-density and of its gradient by each free variable, with constants folded."""
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    total = rewrite_graph(total, include=SIMPLIFIED, exclude=LEFT_OUT, clone=False)
    gradients = pytensor.grad(total, values, disconnected_inputs="ignore")
    return rewrite_graph([total, *gradients], include=SIMPLIFIED, exclude=LEFT_OUT, clone=False)


def of_vector(pieces: Sequence[Variable], model: Any, layout: Layout) -> tuple[Any, list[Variable]]:
    """Return a vector, and the graphs with the free variables replaced by their parts of that vector."""
    values = [model.rvs_to_values[rv] for rv in model.free_RVs]
    point = pt.TensorType("float64", shape=(layout.size,))("point")
    return point, clone_replace(list(pieces), dict(zip(values, layout.split(point).values(), strict=True)))


def joined(pieces: Sequence[Any]) -> Variable:
    """Return all pieces, flattened and concatenated into one vector."""
    return pt.concatenate([piece.reshape((-1,)).astype("float64") for piece in pieces])


def constants(results: Sequence[Variable]) -> list[Any]:
    """Return the arrays that a graph has as constants, each once."""
    return [
        one
        for one in dict.fromkeys(ancestors(results))
        if isinstance(one, Constant) and hasattr(one.data, "nbytes") and one.data.ndim > 0
    ]
