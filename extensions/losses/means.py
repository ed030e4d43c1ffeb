"""Check predictions, targets and weights, and average the losses of elements.

predictions, targets -> paired -> one loss for each element -> reduced, with weights of rows -> 0-d loss
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.type import float_dtypes

from synk.values.checks import may_be_equal


def predicted(what: str, name: str, value: Any) -> Any:
    """Return predictions as a tensor of floats; TypeError that names the loss if they are something else."""
    value = pt.as_tensor_variable(value)
    if value.type.dtype not in float_dtypes:
        raise TypeError(f'{what}: {name} are {value.type.dtype}; pass floats, as by .astype("float32")')
    return value


def paired(what: str, name: str, predictions: Any, targets: Any) -> tuple[Any, Any]:
    """Return predictions, and targets of their shape and dtype.

    ValueError if the shapes differ, as far as they are known; a length that only one of them tells is checked
    when the function runs, since an axis of length 1 would be repeated in silence.
    """
    predictions = predicted(what, name, predictions)
    targets = pt.as_tensor_variable(targets)
    one, other = predictions.type.shape, targets.type.shape
    if not may_be_equal(one, other):
        raise ValueError(f"{what}: {name} have shape {one}, targets {other}; give each of them its target")
    shape = tuple(n if m is None else m for n, m in zip(one, other, strict=True))
    predictions, targets = (
        value if value.type.shape == shape else pt.specify_shape(value, shape)
        for value in (predictions, targets)
    )
    return predictions, pt.cast(targets, predictions.dtype)


def spread(what: str, weights: Any, losses: Any) -> Any:
    """Return weights in the shape and dtype of the losses, by rows or by the first axes that they have."""
    weights = pt.as_tensor_variable(weights)
    if not 1 <= weights.type.ndim <= losses.type.ndim:
        raise ValueError(
            f"{what}: weights have {weights.type.ndim} axes, the losses {losses.type.ndim}; give one weight "
            "a row, or one for each loss"
        )
    if not may_be_equal(weights.type.shape, losses.type.shape[: weights.type.ndim]):
        raise ValueError(
            f"{what}: weights have shape {weights.type.shape}, the losses {losses.type.shape}; give one "
            "weight a row, or one for each loss"
        )
    padded = pt.shape_padright(pt.cast(weights, losses.dtype), losses.type.ndim - weights.type.ndim)
    return pt.zeros_like(losses) + padded


def reduced(what: str, losses: Any, weights: Any, reduction: str | None, *, scales: Any = None) -> Any:
    """Return the losses of elements as `reduction` says.

    ``"mean"`` is ``sum(weights * losses) / sum(weights)``, 0 where all weights are 0. ``scales`` are weights
    by which the losses are multiplied already, in their shape.
    """
    if reduction not in ("mean", "sum", None):
        raise ValueError(f'{what}: reduction={reduction!r} is none of "mean", "sum" and None')
    if weights is not None:
        rows = spread(what, weights, losses)
        losses = rows * losses
        scales = rows if scales is None else rows * scales
    if reduction is None:
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if scales is None else losses.sum() / not_zero(scales.sum())


def not_zero(total: Any) -> Any:
    """Return 1 in the place of 0, as a divisor of what is 0 as well."""
    return pt.switch(pt.eq(total, 0), pt.ones_like(total), total)


def number(
    what: str, name: str, value: Any, least: float, most: float = np.inf, *, open_: bool = False
) -> float:
    """Return an option as a float; TypeError or ValueError if it is no number, or not in its range.

    `open_` leaves the least and the most out.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{what}: {name}={value!r} is no number; pass one from {least} to {most}")
    inside = least < value < most if open_ else least <= value <= most
    if not inside:
        raise ValueError(f"{what}: {name}={value} is not between {least} and {most}; pass one that is")
    return float(value)
