"""Losses of how far two masks overlap.

probabilities, masks -> sums over pixels -> one Dice for each image or channel, or one for the batch -> loss
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

from synk.extensions.losses.means import not_zero, number, paired, reduced, spread

WHAT = "dice"


def dice(
    probabilities: Any,
    targets: Any,
    *,
    per: str = "batch",
    per_channel: bool = False,
    smooth: float = 1.0,
    weights: Any = None,
) -> Any:
    """Return one minus the soft Dice coefficient of predicted masks and those that are wanted.

    ``1 - (2 * sum(p * y) + smooth) / (sum(p) + sum(y) + smooth)``. The sums are over all pixels of all images
    of the batch, on all ranks; or over those of each image, and the loss is the mean over images.

    Where mask and prediction are both empty, the coefficient is 1 and the loss 0, with `smooth` of 0, too.
    A prediction ``p`` of an empty mask has the loss ``1 - smooth / (sum(p) + smooth)``: with `smooth` of 0 it
    is 1 for any prediction, and nothing is learned from such an image.

    Parameters
    ----------
    probabilities : tensor of floats, shape (images, ...)
        From 0 to 1: ``pt.sigmoid(logits)``, or a softmax over axis 1.
    targets : tensor, shape of `probabilities`
        0 or 1, of any dtype.
    per : {"batch", "image"}
        One coefficient of the whole batch, or one for each image.
    per_channel : bool
        Whether each channel, axis 1, has a coefficient of its own; the loss is their mean.
    smooth : float
        Added above and below, not negative; in pixels.
    weights : vector, shape (images,), optional
        Of each image: in all sums, or in the mean over images.

    Returns
    -------
    0-d tensor
        In the dtype of `probabilities`.

    Raises
    ------
    TypeError, ValueError
        The probabilities are no floats, the shapes differ, or an option is none of these.

    See Also
    --------
    synk.extensions.losses.binary_cross_entropy : adds up over pixels.

    Notes
    -----
    The coefficient of a batch does not add up over rows: averaging gradients of ranks that have computed it
    of their own rows is off, the more the sizes of objects differ. Here ranks add up both sums first, so loss
    and gradient are those of one process. That takes the rows of a step in one slice, where ``per="batch"``.

    References
    ----------
    Milletari, Navab and Ahmadi (2016), "V-Net", arXiv:1606.04797, with sums in the place of sums of squares.

    Examples
    --------
    >>> p, y = pt.matrix("p"), pt.matrix("y")
    >>> f = synk.function([p, y], [losses.dice(p, y), losses.dice(p, y, per="image", smooth=0)])
    >>> batch, image = f([[1.0, 0.0], [0.5, 0.0]], [[1.0, 0.0], [0.0, 0.0]])
    >>> print(batch.round(4), image.round(4))
    0.1429 0.5
    """
    probabilities, targets = paired(WHAT, "probabilities", probabilities, targets)
    if per not in ("batch", "image"):
        raise ValueError(f'{WHAT}: per={per!r} is neither "batch" nor "image"')
    if per_channel and probabilities.type.ndim < 2:
        raise ValueError(f"{WHAT}: per_channel=True needs axis 1, but there is one axis; leave it out")
    extra = np.asarray(number(WHAT, "smooth", smooth, 0), probabilities.dtype)
    apart = {0} if per == "image" else set()
    apart |= {1} if per_channel else set()
    axes = [axis for axis in range(probabilities.type.ndim) if axis not in apart]
    rows = 1 if weights is None or per == "image" else spread(WHAT, weights, probabilities)
    both = (rows * 2 * probabilities * targets).sum(axis=axes) + extra
    each = (rows * (probabilities + targets)).sum(axis=axes) + extra
    # With nothing on both sides, 0 / 0 would be NaN, and so would be its gradient.
    coefficients = pt.switch(pt.eq(each, 0), pt.ones_like(each), both / not_zero(each))
    return reduced(WHAT, 1 - coefficients, weights if per == "image" else None, "mean")
