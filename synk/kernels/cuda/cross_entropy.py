"""Cross-entropy of softmax in CUDA, a block for each row: see ``cross_entropy.cu``.

    logits, labels -> kernels -> losses and log_sum, or the gradient of logits

The signatures, and what runs for other dtypes, are those of ``PlainNorm``: labels are not looked at on the
host, and one that is no column makes a loss of NaN. Has run on an emulator only. Imports this package and
``plain_norm``.
"""

from collections.abc import Callable
from types import ModuleType

from synk.kernels.cuda.arrays import contiguous, elements_at_once, kind_of
from synk.kernels.cuda.launch import BLOCKS, row_threads
from synk.kernels.cuda.library import kernel, lengths
from synk.kernels.plain_norm import PlainNorm
from synk.kernels.results import array_for

FILE = "cross_entropy"


def forward(xp: ModuleType) -> Callable:
    """Return forward, as `PlainNorm.softmax_cross_entropy`."""
    instead = PlainNorm(xp).softmax_cross_entropy()

    def run(logits, labels, out=None):
        kind = kind_of(logits)
        if kind is None:
            return instead(logits, labels, out=out)
        (logits,), (labels,) = contiguous(xp, logits.dtype, logits), contiguous(xp, "int64", labels)
        rows, columns = logits.shape
        outs = (None, None) if out is None else out
        results = [array_for(xp, place, logits.dtype, (rows,)) for place in outs]
        vector = elements_at_once(kind, columns, logits)
        losses = kernel(xp, FILE, "losses_of", logits.dtype.name, VECTOR=vector)
        arguments = (logits, labels, *lengths(rows, columns), *results)
        losses((min(rows, 2 * BLOCKS),), (row_threads(columns, vector),), arguments)
        return tuple(results)

    return run


def backward(xp: ModuleType) -> Callable:
    """Return backward, as `PlainNorm.softmax_cross_entropy_gradient`."""
    instead = PlainNorm(xp).softmax_cross_entropy_gradient()

    def run(g, logits, labels, log_sum, out=None):
        kind = kind_of(logits)
        if kind is None:
            return instead(g, logits, labels, log_sum, out=out)
        g, logits, log_sum = contiguous(xp, logits.dtype, g, logits, log_sum)
        (labels,) = contiguous(xp, "int64", labels)
        rows, columns = logits.shape
        result = array_for(xp, out, logits.dtype, logits.shape)
        vector = elements_at_once(kind, columns, logits, result)
        differentiate = kernel(xp, FILE, "differentiate", logits.dtype.name, VECTOR=vector)
        arguments = (g, logits, labels, log_sum, *lengths(rows, columns), result)
        differentiate((min(rows, 2 * BLOCKS),), (row_threads(columns, vector),), arguments)
        return result

    return run
