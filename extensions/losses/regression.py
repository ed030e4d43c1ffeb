"""Losses of numbers.

predictions, targets -> errors -> losses -> their mean
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

from synk.extensions.losses.means import number, paired, reduced


def huber(
    predictions: Any,
    targets: Any,
    *,
    delta: float = 1.0,
    weights: Any = None,
    reduction: str | None = "mean",
) -> Any:
    """Return a loss that is quadratic for small errors and grows along a line for large ones.

    With ``e = predictions - targets`` it is ``e**2 / 2`` where ``abs(e) <= delta``, else
    ``delta * (abs(e) - delta / 2)``: no gradient is longer than `delta`.

    Parameters
    ----------
    predictions : tensor of floats, shape (rows, ...)
    targets : tensor, shape of `predictions`
    delta : float
        Where the line begins, positive.
    weights : tensor, shape (rows,) or that of the first axes of `predictions`, optional
        Of rows, or of each loss.
    reduction : {"mean", "sum", None}
        ``sum(weights * losses) / sum(weights)``, 0 where all weights are 0; the sum above it; or all losses.

    Returns
    -------
    0-d tensor, or one of the shape of `predictions`
        In the dtype of `predictions`.

    Raises
    ------
    TypeError, ValueError
        The predictions are no floats, the shapes differ, or an option is none of these.

    References
    ----------
    Huber (1964), "Robust estimation of a location parameter", doi:10.1214/aoms/1177703732.

    Examples
    --------
    >>> p, y = pt.vector("p"), pt.vector("y")
    >>> print(synk.function([p, y], losses.huber(p, y))([0.0, 0.0], [1.0, 3.0]))  # of 0.5 and 2.5
    1.5
    """
    what = "huber"
    predictions, targets = paired(what, "predictions", predictions, targets)
    limit = np.asarray(number(what, "delta", delta, 0, open_=True), predictions.dtype)
    distance = abs(predictions - targets)
    # The part of the distance below the limit; both branches in one, without a choice of gradients.
    near = pt.minimum(distance, limit)
    half = np.asarray(0.5, predictions.dtype)
    return reduced(what, near * (distance - half * near), weights, reduction)
