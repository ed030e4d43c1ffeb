"""Losses of classes, from logits: those of one yes or no, and of one class among several.

logits, targets or labels -> a loss for each element -> their mean
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.type import integer_dtypes

from synk.extensions.losses.means import number, paired, predicted, reduced
from synk.ops import softmax_cross_entropy
from synk.values.checks import may_be_equal


def binary_cross_entropy(
    logits: Any,
    targets: Any,
    *,
    positive_weight: float = 1.0,
    weights: Any = None,
    reduction: str | None = "mean",
) -> Any:
    """Return the cross-entropy of yes-or-no answers, from logits.

    ``-(positive_weight * y * log(p) + (1 - y) * log(1 - p))`` with ``p = sigmoid(logits)``, computed from the
    logits: no logarithm is taken of a probability that has become 0.

    Parameters
    ----------
    logits : tensor of floats, shape (rows, ...)
    targets : tensor, shape of `logits`
        From 0 to 1.
    positive_weight : float
        Of the part that wants a yes, for answers that are seldom yes; not negative.
    weights : tensor, shape (rows,) or that of the first axes of `logits`, optional
        Of rows, or of each loss.
    reduction : {"mean", "sum", None}
        ``sum(weights * losses) / sum(weights)``, 0 where all weights are 0; the sum above it; or all losses.

    Returns
    -------
    0-d tensor, or one of the shape of `logits`
        In the dtype of `logits`.

    Raises
    ------
    TypeError, ValueError
        The logits are no floats, the shapes differ, or an option is none of these.

    See Also
    --------
    synk.extensions.losses.focal : gives less weight to what is right already.

    Examples
    --------
    >>> z, y = pt.vector("z"), pt.vector("y")
    >>> f = synk.function([z, y], losses.binary_cross_entropy(z, y))
    >>> print(f([0.0, 100.0], [1.0, 1.0]).round(4))  # half of log 2
    0.3466
    """
    what = "binary_cross_entropy"
    logits, targets = paired(what, "logits", logits, targets)
    more = np.asarray(number(what, "positive_weight", positive_weight, 0) - 1, logits.dtype)
    return reduced(what, _binary(logits, targets, more), weights, reduction)


def focal(
    logits: Any,
    targets: Any,
    *,
    gamma: float = 2.0,
    alpha: float | None = None,
    weights: Any = None,
    reduction: str | None = "mean",
) -> Any:
    """Return the cross-entropy of yes-or-no answers, with little weight on what is right already.

    ``-a * (1 - q)**gamma * log(q)``, where ``q`` is the probability of the right answer, ``sigmoid(logits)``
    or one minus it; ``a`` is `alpha` where the answer is yes, else ``1 - alpha``, and 1 without `alpha`.

    Parameters
    ----------
    logits : tensor of floats, shape (rows, ...)
    targets : tensor, shape of `logits`
        0 or 1, nothing between.
    gamma : float
        Not negative; 0 gives `binary_cross_entropy`.
    alpha : float, optional
        Weight of the yes, from 0 to 1.
    weights : tensor, shape (rows,) or that of the first axes of `logits`, optional
        Of rows, or of each loss.
    reduction : {"mean", "sum", None}
        ``sum(weights * losses) / sum(weights)``, 0 where all weights are 0; the sum above it; or all losses.

    Returns
    -------
    0-d tensor, or one of the shape of `logits`
        In the dtype of `logits`.

    Raises
    ------
    TypeError, ValueError
        The logits are no floats, the shapes differ, or an option is none of these.

    References
    ----------
    Lin, Goyal, Girshick, He and Dollar (2017), arXiv:1708.02002, equations 4 and 5.

    Examples
    --------
    >>> z, y = pt.vector("z"), pt.vector("y")
    >>> f = synk.function([z, y], losses.focal(z, y, gamma=2))
    >>> print(f([0.0, 0.0], [1.0, 0.0]).round(4))  # a quarter of log 2
    0.1733
    """
    what = "focal"
    logits, targets = paired(what, "logits", logits, targets)
    power = np.asarray(number(what, "gamma", gamma, 0), logits.dtype)
    towards = logits * (2 * targets - 1)  # the logit of the right answer
    # (1 - q)**gamma by its logarithm, whose gradient is finite where q has become 1.
    hard = pt.exp(-power * pt.softplus(towards))
    elements = hard * pt.softplus(-towards)
    if alpha is not None:
        yes = np.asarray(number(what, "alpha", alpha, 0, 1), logits.dtype)
        elements = elements * pt.switch(pt.gt(targets, 0.5), yes, 1 - yes)
    return reduced(what, elements, weights, reduction)


def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    class_weights: Any = None,
    label_smoothing: float = 0.0,
    ignored: int | None = None,
    weights: Any = None,
    reduction: str | None = "mean",
) -> Any:
    """Return the cross-entropy of one class among several, from logits.

    With ``p = softmax(logits)`` over axis 1, weights ``c`` of the ``n`` classes and a smoothing ``s``, it is
    ``-(1 - s) * c[y] * log(p[y]) - s / n * sum(c * log(p))`` for the label ``y``. The mean divides by the sum
    of the ``c[y]``, times the weights of rows. Labels that are ignored count nowhere.

    Parameters
    ----------
    logits : tensor of float32 or float64, shape (rows, classes, ...)
        With more axes than two, there is one label for each pixel.
    labels : tensor of integers, shape (rows, ...)
        From 0 to classes - 1, or `ignored`; another one is an IndexError when the function runs.
    class_weights : vector, shape (classes,), optional
    label_smoothing : float
        The share of each label that is given to all classes alike, from 0 to 1.
    ignored : int, optional
        Such as 255, or -100.
    weights : tensor, shape (rows,) or that of the first axes of `labels`, optional
        Of rows, or of each label.
    reduction : {"mean", "sum", None}
        The sum of the losses divided by that of all weights, 0 where those are all 0; the sum; or all losses.

    Returns
    -------
    0-d tensor, or one of the shape of `labels`
        In the dtype of `logits`.

    Raises
    ------
    TypeError, ValueError
        The logits are no floats, labels no integers, the shapes differ, or an option is none of these.
    IndexError
        When the function runs: a label is no class.

    See Also
    --------
    synk.ops.softmax_cross_entropy : the Op, of each row.

    References
    ----------
    Szegedy and others (2015), arXiv:1512.00567, section 7, for the smoothing.

    Examples
    --------
    >>> z, y = pt.matrix("z"), pt.lvector("y")
    >>> f = synk.function([z, y], losses.cross_entropy(z, y, ignored=-100))
    >>> print(f(np.zeros((3, 2)), [0, 1, -100]).round(4))  # log 2
    0.6931
    """
    what = "cross_entropy"
    logits, labels = predicted(what, "logits", logits), pt.as_tensor_variable(labels)
    if labels.type.dtype not in integer_dtypes:
        raise TypeError(f"{what}: labels are {labels.type.dtype}; pass integers, the numbers of the classes")
    given, wanted = labels.type.shape, (*logits.type.shape[:1], *logits.type.shape[2:])
    if logits.type.ndim < 2 or not may_be_equal(given, wanted):
        raise ValueError(
            f"{what}: logits have shape {logits.type.shape}, labels {given}; give logits "
            "(rows, classes, ...) and labels (rows, ...)"
        )
    smoothing = number(what, "label_smoothing", label_smoothing, 0, 1)
    labels = _of_pixels(what, labels, logits)
    table, flat = _as_table(logits), labels.reshape((-1,)) if labels.type.ndim > 1 else labels
    counted = None
    if ignored is not None:
        if isinstance(ignored, bool) or not isinstance(ignored, int | np.integer):
            raise TypeError(f"{what}: ignored={ignored!r} is no integer; pass a label, such as 255")
        counted = pt.neq(flat, ignored)
        flat = pt.switch(counted, flat, pt.zeros_like(flat))
    scales = None if class_weights is None else _class_weights(what, class_weights, logits)
    elements = softmax_cross_entropy(table, flat)
    weight = None if scales is None else scales[flat]
    elements = elements if weight is None else weight * elements
    if smoothing:
        # The mean over classes of -log p; the largest logit is taken out of the exponentials.
        shifted = table - disconnected_grad(table.max(axis=1, keepdims=True))
        surprise = pt.log(pt.exp(shifted).sum(axis=1, keepdims=True)) - shifted
        share = np.asarray(smoothing, logits.dtype)
        everywhere = (surprise if scales is None else surprise * scales).mean(axis=1)
        elements = (1 - share) * elements + share * everywhere
    if counted is not None:
        elements = pt.switch(counted, elements, pt.zeros_like(elements))
        weight = pt.cast(counted, logits.dtype) if weight is None else pt.switch(counted, weight, 0)
    if labels.type.ndim > 1:
        elements, weight = (
            None if one is None else pt.specify_shape(one.reshape(labels.shape), given)
            for one in (elements, weight)
        )
    return reduced(what, elements, weights, reduction, scales=weight)


def _binary(logits: Any, targets: Any, more: Any) -> Any:
    """Return the cross-entropy of each logit; `more` is the weight of the yes beyond 1."""
    if not more:
        return pt.softplus(logits) - logits * targets
    return (1 - targets) * logits + (1 + more * targets) * pt.softplus(-logits)


def _as_table(logits: Any) -> Any:
    """Return logits as (labels, classes)."""
    ndim = logits.type.ndim
    if ndim == 2:
        return logits
    last = logits.dimshuffle(0, *range(2, ndim), 1)
    classes = logits.type.shape[1]
    return last.reshape((-1, logits.shape[1] if classes is None else classes))


def _of_pixels(what: str, labels: Any, logits: Any) -> Any:
    """Return labels that are checked for the logits' lengths, where graphs do not know them.

    As many labels in another order of axes would be taken for those of other pixels.
    """
    unsure = [
        k for k in range(1, labels.type.ndim) if None in (labels.type.shape[k], logits.type.shape[k + 1])
    ]
    if not unsure:
        return labels
    check = CheckAndRaise(
        ValueError,
        f"{what}: the labels have other lengths than the logits beside rows and classes; give logits (rows, "
        "classes, ...) and labels (rows, ...)",
    )
    return check(labels, *[pt.eq(labels.shape[axis], logits.shape[axis + 1]) for axis in unsure])


def _class_weights(what: str, class_weights: Any, logits: Any) -> Any:
    class_weights = pt.cast(pt.as_tensor_variable(class_weights), logits.dtype)
    if not may_be_equal(class_weights.type.shape, logits.type.shape[1:2]):
        raise ValueError(
            f"{what}: class_weights have shape {class_weights.type.shape}, the logits {logits.type.shape[1]} "
            "classes; give one weight a class"
        )
    if None in (class_weights.type.shape[0], logits.type.shape[1]):
        check = CheckAndRaise(
            ValueError, f"{what}: class_weights are not as many as classes; give one a class"
        )
        return check(class_weights, pt.eq(class_weights.shape[0], logits.shape[1]))
    return class_weights
