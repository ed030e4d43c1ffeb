"""Cross-entropy of class labels under a softmax, without computing the softmax.

softmax_cross_entropy -> SoftmaxCrossEntropy(logits, labels) -> losses, log_sum
its gradient: SoftmaxCrossEntropyGradient(g, logits, labels, log_sum) -> glogits
"""

from typing import Any

import numpy as np
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType

from synk.compile import array_funcify
from synk.kernels.choose import norm_kernels
from synk.ops.checks import common_length, float_tensor, integer_tensor, looked_at, refuse_second


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
    """
    return SoftmaxCrossEntropy()(logits, labels)[0]


class SoftmaxCrossEntropy(Op):
    """The loss of each row, and the logarithm of its sum of exponentials, which the gradient reads."""

    __props__ = ()

    def make_node(self, logits, labels):
        logits, labels = _inputs(logits, labels)
        rows = common_length("the numbers of rows and labels", logits.type.shape[0], labels.type.shape[0])
        kind = TensorType(logits.type.dtype, (rows,))
        return Apply(self, [logits, labels], [kind(), kind()])

    def infer_shape(self, *arguments):
        rows = (arguments[-1][0][0],)  # before PyTensor 3.1 the graph stands in front
        return [rows, rows]

    def perform(self, node, inputs, output_storage):
        logits, labels = inputs
        check_lengths(logits, labels)
        check_labels(logits, labels)
        wide = logits.astype("float64")
        top = wide.max(axis=1, initial=-np.inf)
        top[np.isinf(top)] = 0  # infinity less itself is NaN
        above = wide - top[:, None]
        log_sum = np.log(np.exp(above).sum(axis=1))
        losses = log_sum - above[np.arange(len(labels)), labels]
        for cell, value in zip(output_storage, (losses, log_sum + top), strict=True):
            cell[0] = value.astype(logits.dtype)

    def connection_pattern(self, node):
        return [[True, True], [False, False]]

    def pullback(self, inputs, outputs, cotangents):
        g, other = cotangents
        if not isinstance(other.type, DisconnectedType):
            raise NotImplementedError("log_sum is not differentiated; use pytensor.tensor.logsumexp")
        return [SoftmaxCrossEntropyGradient()(g, *inputs, outputs[1]), disconnected_type()]


class SoftmaxCrossEntropyGradient(Op):
    """``g * (softmax(logits) - one at the label)``, row by row."""

    __props__ = ()

    def make_node(self, g, logits, labels, log_sum):
        logits, labels = _inputs(logits, labels)
        g, log_sum = (
            float_tensor(name, value, (1,), logits.type.dtype)
            for name, value in (("g", g), ("log_sum", log_sum))
        )
        return Apply(self, [g, logits, labels, log_sum], [logits.type()])

    def infer_shape(self, *arguments):
        return [arguments[-1][1]]

    def perform(self, node, inputs, output_storage):
        g, logits, labels, log_sum = inputs
        check_lengths(logits, labels, g, log_sum)
        check_labels(logits, labels)
        powers = np.exp(logits.astype("float64") - log_sum[:, None])
        # A log_sum that was rounded makes all of them too large or too small by one factor.
        result = powers / powers.sum(axis=1, keepdims=True)
        result[np.arange(len(labels)), labels] -= 1
        output_storage[0][0] = (result * g[:, None]).astype(logits.dtype)

    def connection_pattern(self, node):
        return [[True], [True], [False], [True]]

    def pullback(self, inputs, outputs, cotangents):
        refuse_second("softmax_cross_entropy")


def _inputs(logits: Any, labels: Any) -> tuple[Any, Any]:
    return float_tensor("logits", logits, (2,)), integer_tensor("labels", labels, (1,))


def check_lengths(logits: Any, *vectors: Any) -> None:
    """Raise ValueError unless there is one label a row, and one number of each other kind."""
    for vector in vectors:
        if len(vector) != len(logits):
            raise ValueError(f"{len(vector)} labels for {len(logits)} rows of logits: give one label a row")


def check_labels(logits: np.ndarray, labels: np.ndarray) -> None:
    """Raise IndexError for the first label that is no class."""
    classes = logits.shape[1]
    (wrong,) = np.nonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise IndexError(f"label {int(labels[row])} of row {row} is not one of 0 to {classes - 1}")


@array_funcify.register(SoftmaxCrossEntropy)
def cross_entropy_entry(op, node, xp):
    """A row at a time, while it is in cache."""
    kernels = norm_kernels(xp, node.inputs[0].type.dtype)
    return looked_at(check_lengths, kernels.softmax_cross_entropy())


@array_funcify.register(SoftmaxCrossEntropyGradient)
def cross_entropy_gradient_entry(op, node, xp):
    """The same for the gradient."""
    kernels = norm_kernels(xp, node.inputs[1].type.dtype)
    run = kernels.softmax_cross_entropy_gradient()
    return looked_at(lambda g, logits, *vectors: check_lengths(logits, g, *vectors), run)
