"""Cross-entropy of softmax by loops in C: see ``cross_entropy.c``.

logits, labels -> cross_entropy.c -> losses and log_sum, or the gradient of logits
"""

import ctypes
from collections.abc import Callable

import numpy as np

from synk.kernels.loops.c_functions import CFunction, contiguous
from synk.kernels.plain_norm import PlainNorm, wrong_label
from synk.kernels.provider import array_for, arrays_for

FORWARD = CFunction("cross_entropy", "cross_entropy", "aaaann", ctypes.c_long)
BACKWARD = CFunction("cross_entropy", "cross_entropy_gradient", "aaaaann", ctypes.c_long)


class LoopCrossEntropy(PlainNorm):
    """Cross-entropy; `PlainNorm` says what is computed, and computes where nothing can be compiled."""

    def softmax_cross_entropy(self) -> Callable:
        plain = super().softmax_cross_entropy()

        def forward(logits, labels, out=None):
            loop = FORWARD.form(logits.dtype)
            if loop is None:
                return plain(logits, labels, out=out)
            rows, columns = check_rows(logits, labels)
            (logits,), (labels,) = contiguous(logits.dtype, logits), contiguous(np.dtype("int64"), labels)
            losses, log_sum = arrays_for(np, out, logits.dtype, (rows,), (rows,))
            check_labels(loop(logits, labels, losses, log_sum, rows, columns), labels, columns)
            return losses, log_sum

        return forward

    def softmax_cross_entropy_gradient(self) -> Callable:
        plain = super().softmax_cross_entropy_gradient()

        def backward(g, logits, labels, log_sum, out=None):
            loop = BACKWARD.form(logits.dtype)
            if loop is None:
                return plain(g, logits, labels, log_sum, out=out)
            rows, columns = check_rows(logits, labels, g, log_sum)
            g, logits, log_sum = contiguous(logits.dtype, g, logits, log_sum)
            (labels,) = contiguous(np.dtype("int64"), labels)
            glogits = array_for(np, out, logits.dtype, logits.shape)
            check_labels(loop(g, logits, labels, log_sum, glogits, rows, columns), labels, columns)
            return glogits

        return backward


def check_rows(logits: np.ndarray, *by_row: np.ndarray) -> tuple[int, int]:
    """Return rows and columns of the logits; ValueError if another array has not one number a row."""
    rows, columns = logits.shape
    for array in by_row:
        if array.shape != (rows,):
            raise ValueError(f"logits have {rows} rows; an array by row has shape {array.shape}")
    return rows, columns


def check_labels(row: int, labels: np.ndarray, columns: int) -> None:
    """Raise IndexError for the row that C did not take; -1 is none."""
    if row >= 0:
        raise wrong_label(row, int(labels[row]), columns)
