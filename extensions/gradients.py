"""Lay many arrays out in one vector that is all-reduced at once, and read them back.

Slices and ranks add what they have of each array (`synk.ops.addend`), so the sum of all vectors holds the
arrays of the whole batch. The last element is the weight, 1 in that sum:

    addends -> flatten -> [ array_0 | array_1 | ... | 1 ] -> all-reduce -> unflatten -> arrays / weight

Since it is reduced along with the arrays, all-reducing by "avg" or by "sum" gives the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import TrueDiv
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import float_dtypes

from synk import n_rows
from synk.ops import addend, whole

__all__ = ["flat_gradient", "flatten", "global_norm", "unflatten"]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__


OTHERWISE = "let each rank take steps along its own gradient, by the rule synk.extensions.updates.local(rule)"


def flatten(arrays: Sequence[Any], weight: Any) -> Any:
    """Join arrays and their weight in one vector.

    Parameters
    ----------
    arrays : sequence of ndarray, or of PyTensor tensors
        Any shapes, one dtype.
    weight : NumPy or PyTensor scalar
        Of the same dtype.

    Returns
    -------
    ndarray or PyTensor vector, shape (sum of sizes + 1,)
        The arrays in C order, one after the other, then the weight.

    See Also
    --------
    synk.extensions.gradients.unflatten : reads them back.

    Examples
    --------
    >>> from synk.extensions.gradients import flatten
    >>> print(flatten([np.ones((2, 2)), np.zeros(3)], np.float64(5)))
    [1. 1. 1. 1. 0. 0. 0. 5.]
    """
    pieces = [*(array.reshape((-1,)) for array in arrays), weight.reshape((1,))]
    symbolic = any(isinstance(piece, Variable) for piece in pieces)
    return pt.concatenate(pieces) if symbolic else np.concatenate(pieces)


def unflatten(vector: Any, shapes: Iterable[tuple[int, ...]]) -> tuple[list[Any], Any]:
    """Read back what `flatten` joined.

    Parameters
    ----------
    vector : ndarray or PyTensor vector, shape (sum of sizes + 1,)
    shapes : iterable of tuple of int
        The arrays' shapes, in order.

    Returns
    -------
    arrays : list of ndarray or PyTensor tensor
        Views of `vector`, one for each shape.
    weight : NumPy or PyTensor scalar

    Raises
    ------
    ValueError
        A NumPy vector has another length than the shapes ask for.

    See Also
    --------
    synk.extensions.gradients.flatten : makes the vector.

    Examples
    --------
    >>> from synk.extensions.gradients import unflatten
    >>> arrays, weight = unflatten(np.arange(6.0), [(2, 2), ()])
    >>> print(arrays[0].tolist(), arrays[1], weight)
    [[0.0, 1.0], [2.0, 3.0]] 4.0 5.0
    """
    shapes = list(shapes)
    edges = list(accumulate(map(prod, shapes), initial=0))
    if isinstance(vector, np.ndarray) and vector.shape != (edges[-1] + 1,):
        raise ValueError(
            f"vector has shape {vector.shape}, but arrays of shapes {shapes} and their weight "
            f"take ({edges[-1] + 1},); pass the shapes that were flattened"
        )
    arrays = [vector[i:j].reshape(shape) for (i, j), shape in zip(pairwise(edges), shapes, strict=True)]
    return arrays, vector[-1]


def flat_sum(values: Sequence[Any], variables: Sequence[Any], name: str) -> tuple[Any, Any, list[Any]]:
    """Make the vector, called `name`, in which `values` of the whole batch are formed.

    Each is for one of `variables`, which gives the shape and the common dtype. Returns the shared vector, of
    shape (sum of sizes + 1,); what one slice adds to it, accumulated by "sum"; and the values, read from the
    vector once it is all-reduced, and divided by the weight.
    """
    dtype = variables[0].dtype
    shapes = [variable.get_value(borrow=True).shape for variable in variables]
    flat = pytensor.shared(np.zeros(sum(map(prod, shapes)) + 1, dtype), name=name)
    # Told the shapes, each rank's program knows the layout and writes the pieces where they belong.
    pieces = [
        pt.specify_shape(addend(pt.cast(value, dtype)), shape)
        for value, shape in zip(values, shapes, strict=True)
    ]
    expression = flatten(pieces, addend(pt.constant(np.ones((), dtype))))
    totals, _ = unflatten(reduced(flat), shapes)
    return flat, expression, [total / weight_of(flat) for total in totals]


def reduced(flat: Any) -> Variable:
    """Return a variable for the vector after its all-reduce; a graph that reads it earlier is refused.

    It is the same variable each time, in whose place another vector can be put.
    """
    if not hasattr(flat.tag, "reduced"):
        flat.tag.reduced = whole(flat, OTHERWISE)
    return flat.tag.reduced


def weight_of(flat: Any) -> Variable:
    """Return the weight of the vector after its all-reduce, by which gradients and their norm are divided.

    It is the same variable each time: with another one in its place, all of them are divided by that.
    """
    if not hasattr(flat.tag, "weight"):
        flat.tag.weight = reduced(flat)[-1]
    return flat.tag.weight


def gradients_in(values: Sequence[Any], flat: Any) -> list[Variable]:
    """Return the parameters' gradients, as read from the vector after its all-reduce, that graphs depend on.

    They are found by what they are, pieces of the vector divided by its weight, or by a multiple of that.
    """
    found = []
    for node in io_toposort([], list(values)):
        divides = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, TrueDiv)
        piece = node.inputs[0].owner if divides else None
        if piece is None or not isinstance(piece.op, Reshape) or piece.inputs[0].owner is None:
            continue
        cut = piece.inputs[0].owner
        if isinstance(cut.op, Subtensor) and cut.inputs[0] is reduced(flat):
            found.append(node.outputs[0])
    return found


def own_sum(values: Sequence[Any], variables: Sequence[Any]) -> Variable:
    """Return the addend of a slice to a vector as of `flat_sum`, which has the mean over this rank's rows.

    Each slice counts by its rows, and so does its weight: the rows. A rank without rows has zeros.
    """
    dtype = variables[0].dtype
    weight = pt.cast(n_rows, dtype)
    pieces = [
        pt.specify_shape(pt.cast(value, dtype) * weight, variable.get_value(borrow=True).shape)
        for value, variable in zip(values, variables, strict=True)
    ]
    return flatten(pieces, weight)


def flat_gradient(loss: Any, params: Iterable[Any]) -> tuple[Any, Any, list[Any]]:
    """Make the vector in which the gradient of a loss is accumulated and all-reduced.

    All slices and ranks together add up ``[d(loss)/dp_0 | d(loss)/dp_1 | ... | 1]``.

    Parameters
    ----------
    loss : 0-d floating-point PyTensor tensor
        Of the whole batch: a mean over rows, a sum, a weighted mean, with or without a regulariser, ...
    params : shared variable, or iterable of them
        Of one floating-point dtype.

    Returns
    -------
    flat : shared vector, shape (sum of sizes + 1,)
        Of the parameters' dtype.
    expression : PyTensor vector
        What one slice adds to `flat`: accumulate it by "sum".
    gradients : list of PyTensor tensors
        For each parameter, the gradient as read from `flat`.

    Raises
    ------
    TypeError
        The loss or a parameter is not of a floating-point dtype, a parameter is not a shared
        variable, or the parameters' dtypes differ.
    ValueError
        The loss is not 0-d, does not depend on a parameter, or the parameters are none or repeated.

    See Also
    --------
    synk.extensions.updates.from_gradient : makes an update rule, which calls this.

    Examples
    --------
    >>> from synk.extensions.gradients import flat_gradient
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> flat, expression, (gradient,) = flat_gradient(((w - x) ** 2).mean(), w)
    >>> add = synk.function([x], updates=[(flat, expression, "sum")])
    >>> descend = synk.function([], updates=[(w, w - 0.5 * gradient)])
    >>> step = synk.sequence(add, (synk.all_reduce, flat, "sum"), descend)
    >>> step([1.0, 2.0, 6.0])  # the gradient is -4
    >>> print(w.get_value())
    3.0
    """
    params = listed(params)
    return flat_sum(gradients_of(loss, params), params, name="flat_gradient")


def gradients_of(loss: Any, params: Sequence[Any]) -> list[Variable]:
    """Return the gradient of a loss for each parameter; errors are those of `flat_gradient`."""
    check_loss(loss)
    check_params(params)
    gradients = pytensor.grad(loss, params, disconnected_inputs="ignore", return_disconnected="none")
    for index, gradient in enumerate(gradients):
        if gradient is None:
            raise ValueError(f"the loss does not depend on {_label(params, index)}; leave it out of params")
    return gradients


def global_norm(flat: Any) -> Variable:
    """Return the Euclidean norm of the mean gradient of all parameters together.

    ``sqrt(sum over parameters and their elements of g**2)``, of what stands in the flat gradient once it is
    all-reduced, by "sum" or by "avg": the same bits on every rank, whatever rows each had.

    Parameters
    ----------
    flat : shared vector, shape (sum of sizes + 1,)
        As `flat_gradient` returns it.

    Returns
    -------
    0-d PyTensor tensor
        Of the dtype of `flat`, but float32 of float16, whose squares would overflow at 256.

    Examples
    --------
    >>> from synk.extensions.gradients import flat_gradient, global_norm
    >>> x, w = pt.matrix("x"), pytensor.shared(np.zeros(2), name="w")
    >>> flat, expression, _ = flat_gradient((x @ w).mean(), w)
    >>> add = synk.function([x], updates=[(flat, expression, "sum")])
    >>> norm = synk.function([], global_norm(flat))
    >>> step = synk.sequence(add, (synk.all_reduce, flat, "sum"), norm)
    >>> print(step(np.full((5, 2), [3.0, 4.0])))
    5.0
    """
    return norm_of(widened(reduced(flat)[:-1]) / widened(weight_of(flat)))


def norm_of(x: Any) -> Variable:
    """Return the Euclidean norm of all elements, of float16 in float32."""
    return pt.sqrt(pt.sum(pt.sqr(widened(x))))


def widened(x: Any) -> Any:
    """Return float16 as float32, in which squares and sums do not overflow; all else as it is."""
    return pt.cast(x, "float32") if x.dtype == "float16" else x


def listed(params: Any) -> list[Any]:
    """Return parameters as a list; a variable alone is a list of one, of a dict they are the values."""
    if isinstance(params, Variable):
        return [params]
    return list(params.values() if isinstance(params, Mapping) else params)


def check_loss(loss: Any) -> None:
    """Raise unless `loss` is a 0-d floating-point tensor."""
    if not isinstance(loss, Variable) or not hasattr(loss, "dtype"):
        raise TypeError(f"loss is {loss!r}, not a PyTensor tensor; pass a symbolic expression")
    if loss.dtype not in float_dtypes:
        raise TypeError(f"loss has dtype {loss.dtype}, which has no gradient; use a floating-point loss")
    if loss.ndim != 0:
        raise ValueError(f"loss has {loss.ndim} dimensions, not 0; take its mean over rows: loss.mean()")


def check_params(params: Sequence[Any]) -> None:
    """Raise unless `params` are distinct shared tensors of one floating-point dtype."""
    if not params:
        raise ValueError("params is empty; pass the shared variables to train")
    for index, param in enumerate(params):
        if not isinstance(param, SharedVariable):
            raise TypeError(
                f"{_label(params, index)} is not a shared variable: {param!r}; make it with pytensor.shared"
            )
        dtype = getattr(param, "dtype", param.type)
        if dtype not in float_dtypes:
            raise TypeError(f"{_label(params, index)} has dtype {dtype}; only floating-point ones train")
        if dtype != params[0].dtype:
            raise TypeError(
                f"{_label(params, index)} has dtype {dtype} but {_label(params, 0)} has {params[0].dtype}; "
                "one flat vector has one dtype: cast the parameters to a common one"
            )
    for param, count in Counter(params).items():
        if count > 1:
            raise ValueError(f"{_label(params, params.index(param))} is listed {count} times; list it once")


def _label(params: Sequence[Any], index: int) -> str:
    name = getattr(params[index], "name", None)
    return f"params[{index}]" + (f" ('{name}')" if name else "")
