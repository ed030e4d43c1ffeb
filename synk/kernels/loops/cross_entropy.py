"""Cross-entropy of softmax by loops in C: see ``cross_entropy.c``.

    logits, labels -> cross_entropy.c -> losses and log_sum, or the gradient of logits

The signatures, and what runs where nothing can be compiled, are those of ``PlainNorm``. Imports NumPy, the
loader and ``plain_norm``.
"""

import ctypes
from collections.abc import Callable

import numpy as np

from synk.kernels.loops.arrays import contiguous, results
from synk.kernels.loops.library import Loop
from synk.kernels.plain_norm import PlainNorm, wrong_label
from synk.kernels.results import array_for

FORWARD = Loop("cross_entropy", "cross_entropy", "aaaann", ctypes.c_long)
BACKWARD = Loop("cross_entropy", "cross_entropy_gradient", "aaaaann", ctypes.c_long)


def softmax_cross_entropy() -> Callable:
    """Return forward, as `PlainNorm.softmax_cross_entropy`."""
    instead = PlainNorm(np).softmax_cross_entropy()

    def forward(logits, labels, out=None):
        loop = FORWARD.form(logits.dtype)
        if loop is None:
            return instead(logits, labels, out=out)
        rows, columns = check_rows(logits, labels)
        (logits,), (labels,) = contiguous(logits.dtype, logits), contiguous(np.dtype("int64"), labels)
        losses, log_sum = results(out, logits.dtype, (rows,), (rows,))
        check_labels(loop(logits, labels, losses, log_sum, rows, columns), labels, columns)
        return losses, log_sum

    return forward


def softmax_cross_entropy_gradient() -> Callable:
    """Return backward, as `PlainNorm.softmax_cross_entropy_gradient`."""
    instead = PlainNorm(np).softmax_cross_entropy_gradient()

    def backward(g, logits, labels, log_sum, out=None):
        loop = BACKWARD.form(logits.dtype)
        if loop is None:
            return instead(g, logits, labels, log_sum, out=out)
        rows, columns = check_rows(logits, labels, g, log_sum)
        g, logits, log_sum = contiguous(logits.dtype, g, logits, log_sum)
        (labels,) = contiguous(np.dtype("int64"), labels)
        glogits = array_for(np, out, logits.dtype, logits.shape)
        check_labels(loop(g, logits, labels, log_sum, glogits, rows, columns), labels, columns)
        return glogits

    return backward


def check_rows(logits: np.ndarray, *by_row: np.ndarray) -> tuple[int, int]:
    """Return rows and columns of the logits.

    Raises
    ------
    ValueError
        Another array has not one number a row.
    """
    rows, columns = logits.shape
    for array in by_row:
        if array.shape != (rows,):
            raise ValueError(f"logits have {rows} rows; an array by row has shape {array.shape}")
    return rows, columns


def check_labels(row: int, labels: np.ndarray, columns: int) -> None:
    """Raise IndexError for the row that C did not take; -1 is none."""
    if row >= 0:
        raise wrong_label(row, int(labels[row]), columns)
