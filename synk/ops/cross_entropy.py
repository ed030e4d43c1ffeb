"""Cross-entropy of class labels under a softmax, without computing the softmax.

softmax_cross_entropy -> SoftmaxCrossEntropy(logits, labels) -> losses, log_sum
its gradient: SoftmaxCrossEntropyGradient(g, logits, labels, log_sum) -> glogits
"""

from typing import Any

import numpy as np
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.type import TensorType

from synk.ops.checks import common_length, float_tensor, integer_tensor, named
from synk.ops.kernel_op import KernelOp
from synk.ops.kernels.choose import norm_kernels
from synk.ops.kernels.plain_norm import PlainNorm


@named
def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Return ``-log softmax(logits)[label]`` of each row.

    Computed as ``log(sum(exp(logits - max))) - (logits[label] - max)``, which neither overflows nor
    loses small losses.

    Parameters
    ----------
    logits : tensor of float32 or float64, shape (rows, classes)
    labels : tensor of integers, shape (rows,)
        From 0 to classes - 1; another one is an IndexError when the function runs.

    Returns
    -------
    tensor, shape (rows,)
        In the dtype of ``logits``.

    Raises
    ------
    IndexError
        When the function runs: a label is no class.

    Examples
    --------
    >>> logits, labels = pt.matrix("logits"), pt.lvector("labels")
    >>> f = synk.function([logits, labels], ops.softmax_cross_entropy(logits, labels).mean())
    >>> print(f(np.zeros((3, 2)), [0, 1, 1]).round(4))  # log 2
    0.6931
    """
    return SoftmaxCrossEntropy()(logits, labels)[0]


class SoftmaxCrossEntropy(KernelOp):
    """Return the loss of each row, and its ``log(sum(exp(logits)))``, which the gradient reads."""

    __props__ = ()
    provider, plain = staticmethod(norm_kernels), PlainNorm(np)

    def make_node(self, logits, labels):
        logits, labels = _inputs(logits, labels)
        rows = common_length("the numbers of rows and labels", logits.type.shape[0], labels.type.shape[0])
        kind = TensorType(logits.type.dtype, (rows,))
        return Apply(self, [logits, labels], [kind(), kind()])

    def output_shapes(self, node, shapes):
        return [shapes[0][:1]] * 2

    def kernel(self, provider, node):
        return provider.softmax_cross_entropy()

    def check(self, logits, labels):
        check_lengths(logits, labels)

    def connection_pattern(self, node):
        return [[True, True], [False, False]]

    def pullback(self, inputs, outputs, cotangents):
        g, other = cotangents
        if not isinstance(other.type, DisconnectedType):
            raise NotImplementedError("log_sum is not differentiated; use pytensor.tensor.logsumexp")
        return [SoftmaxCrossEntropyGradient()(g, *inputs, outputs[1]), disconnected_type()]


class SoftmaxCrossEntropyGradient(KernelOp):
    """The gradient for logits, row by row: ``g * softmax(logits)``, less ``g`` in the column of the label."""

    __props__ = ()
    provider, plain = staticmethod(norm_kernels), PlainNorm(np)
    differentiated = "softmax_cross_entropy"

    def make_node(self, g, logits, labels, log_sum):
        logits, labels = _inputs(logits, labels)
        g, log_sum = (
            float_tensor(name, value, (1,), logits.type.dtype)
            for name, value in (("g", g), ("log_sum", log_sum))
        )
        return Apply(self, [g, logits, labels, log_sum], [logits.type()])

    def output_shapes(self, node, shapes):
        return [shapes[1]]

    def kernel(self, provider, node):
        return provider.softmax_cross_entropy_gradient()

    def check(self, g, logits, *vectors):
        check_lengths(logits, g, *vectors)

    def connection_pattern(self, node):
        return [[True], [True], [False], [True]]


def _inputs(logits: Any, labels: Any) -> tuple[Any, Any]:
    return float_tensor("logits", logits, (2,)), integer_tensor("labels", labels, (1,))


def check_lengths(logits: Any, *vectors: Any) -> None:
    """Raise ValueError unless each vector, such as the labels, has one number for each row of logits."""
    for vector in vectors:
        if len(vector) != len(logits):
            raise ValueError(f"{len(vector)} labels for {len(logits)} rows of logits: give one label a row")
