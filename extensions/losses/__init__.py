"""Losses of the whole batch, the same on any number of ranks.

    predictions, targets (, weights of rows) -> loss, 0-d -> make_train_function

A mean over rows adds up over ranks; a Dice over the batch, and a mean with weights, do not: they divide one
sum by another, and the average of what ranks have of them is another number, with another gradient. Here
they are written as for one process, and ranks add up both sums before they divide (docs/semantics.rst).
Where they divide by a sum over all rows, as with weights, a step takes its rows in one slice.

Targets and weights are converted to the dtype of the predictions. Importing this package imports `synk.ops`.
"""

from synk.extensions.losses.classes import binary_cross_entropy, cross_entropy, focal
from synk.extensions.losses.overlap import dice
from synk.extensions.losses.regression import huber

__all__ = ["binary_cross_entropy", "cross_entropy", "dice", "focal", "huber"]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__
