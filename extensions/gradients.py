"""Lay many arrays out in one vector that is all-reduced at once, and read them back.

The last element is the weight, the number of rows behind the sums before it:

    sums (rows * array) -> flatten -> [ sum_0 | sum_1 | ... | rows ] -> unflatten -> sums / rows

Slices and ranks add their vectors, so uneven shards weigh what they should; and since the
weight is reduced along with the sums, all-reducing by "avg" or by "sum" gives the same means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.type import float_dtypes

import synk


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


def row_weight(dtype: str) -> Variable:
    """Return the rows of the running slice as a scalar of `dtype`.

    An int64 count would turn every float32 product into float64. As a float it is exact up to
    2**11 rows (float16), 2**24 (float32) or 2**53 (float64).
    """
    return pt.cast(synk.n_rows, dtype)


def flat_mean(sums: Sequence[Any], variables: Sequence[Any], name: str) -> tuple[Any, Any, list[Any]]:
    """Make the vector, called `name`, in which the row-weighted means of `variables` are formed.

    For each variable, which gives the shape and the common dtype, `sums` has rows times its mean over the
    rows of one slice. Returns the shared vector, of shape (sum of sizes + 1,); what one slice adds to it,
    accumulated by "sum"; and the means, read from the vector once it is all-reduced: sums divided by the
    weight.
    """
    dtype = variables[0].dtype
    shapes = [variable.get_value(borrow=True).shape for variable in variables]
    flat = pytensor.shared(np.zeros(sum(map(prod, shapes)) + 1, dtype), name=name)
    # Told the shapes, each rank's program knows the layout and writes the pieces where they belong.
    pieces = [
        pt.specify_shape(pt.cast(array, dtype), shape) for array, shape in zip(sums, shapes, strict=True)
    ]
    expression = flatten(pieces, row_weight(dtype))
    totals, weight = unflatten(flat, shapes)
    return flat, expression, [total / weight for total in totals]


def flat_gradient(loss: Any, params: Iterable[Any]) -> tuple[Any, Any, list[Any]]:
    """Make the vector in which the gradient of a loss is accumulated and all-reduced.

    One slice adds ``[d(rows * loss)/dp_0 | d(rows * loss)/dp_1 | ... | rows]``.

    Parameters
    ----------
    loss : 0-d floating-point PyTensor tensor
        A mean over rows. (A sum over rows would depend on how the rows are split.)
    params : shared variable, or iterable of them
        Of one floating-point dtype.

    Returns
    -------
    flat : shared vector, shape (sum of sizes + 1,)
        Of the parameters' dtype.
    expression : PyTensor vector
        What one slice adds to `flat`: accumulate it by "sum".
    gradients : list of PyTensor tensors
        For each parameter, its mean gradient as read from `flat`.

    Raises
    ------
    TypeError
        The loss or a parameter is not of a floating-point dtype, a parameter is not a shared
        variable, or the parameters' dtypes differ.
    ValueError
        The loss is not 0-d, does not depend on a parameter, or the parameters are none or repeated.
    """
    params = listed(params)
    check_loss(loss)
    check_params(params)
    gradients = pytensor.grad(
        loss * row_weight(loss.dtype), params, disconnected_inputs="ignore", return_disconnected="none"
    )
    for index, gradient in enumerate(gradients):
        if gradient is None:
            raise ValueError(f"the loss does not depend on {_label(params, index)}; leave it out of params")
    return flat_mean(gradients, params, name="flat_gradient")


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
    """
    wide = pt.cast(flat, "float32") if flat.dtype == "float16" else flat
    return pt.sqrt(pt.sum(pt.sqr(wide[:-1] / wide[-1])))


def listed(params: Any) -> list[Any]:
    """Return parameters as a list; a variable alone is a list of one."""
    return [params] if isinstance(params, Variable) else list(params)


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
