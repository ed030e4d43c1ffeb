"""Cross-entropy of softmax in CUDA, a block for each row: see ``cross_entropy.cu``.

    logits, labels -> kernels -> losses and log_sum, or the gradient of logits

Labels are not looked at on the host, and one that is no column makes a loss of NaN.
"""

from collections.abc import Callable

from synk.kernels.cuda.cuda_functions import contiguous, elements_at_once, kernel, kind_of, lengths
from synk.kernels.cuda.launch import BLOCKS, row_threads
from synk.kernels.plain_norm import PlainNorm
from synk.kernels.provider import array_for, arrays_for

FILE = "cross_entropy"


class CudaCrossEntropy(PlainNorm):
    """Cross-entropy of softmax; `PlainNorm` says what is computed, and computes other dtypes."""

    def softmax_cross_entropy(self) -> Callable:
        xp, plain = self._xp, super().softmax_cross_entropy()

        def run(logits, labels, out=None):
            kind = kind_of(logits)
            if kind is None:
                return plain(logits, labels, out=out)
            (logits,), (labels,) = contiguous(xp, logits.dtype, logits), contiguous(xp, "int64", labels)
            rows, columns = logits.shape
            results = arrays_for(xp, out, logits.dtype, (rows,), (rows,))
            vector = elements_at_once(kind, columns, logits)
            losses = kernel(xp, FILE, "losses_of", logits.dtype.name, VECTOR=vector)
            arguments = (logits, labels, *lengths(rows, columns), *results)
            losses((min(rows, 2 * BLOCKS),), (row_threads(columns, vector),), arguments)
            return tuple(results)

        return run

    def softmax_cross_entropy_gradient(self) -> Callable:
        xp, plain = self._xp, super().softmax_cross_entropy_gradient()

        def run(g, logits, labels, log_sum, out=None):
            kind = kind_of(logits)
            if kind is None:
                return plain(g, logits, labels, log_sum, out=out)
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
