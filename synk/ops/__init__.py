"""Symbolic operations of neural networks on PyTensor variables, with gradients.

    conv2d      conv_transpose2d  max_pool2d      avg_pool2d  global_avg_pool2d  upsample2d  crop  pad
    conv1d      conv_transpose1d  max_pool1d      avg_pool1d
    batch_norm  group_norm        layer_norm      relu        dropout            softmax_cross_entropy
    all_reduce  all_sum           all_gather      broadcast   reduce_scatter

Arrays of images have the axes (images, channels, height, width), lines (lines, channels, length). Each Op is
defined in plain NumPy, and computed by kernels that `synk.ops.kernels` chooses. Two modules rewrite graphs:
`layout` moves the channels of images to the last axis, and `fuse` joins biases and rectifiers with the Op
before them.
"""

from synk.exact.collectives.collectives import all_gather, all_reduce, all_sum, broadcast, reduce_scatter
from synk.exact.collectives.marks import addend, whole
from synk.ops import fuse as _fuse  # noqa: F401  (registers its rewrites)
from synk.ops import layout as _layout  # noqa: F401
from synk.ops import row_rules as _row_rules  # noqa: F401
from synk.ops.activation import relu
from synk.ops.batch_norm import batch_norm
from synk.ops.conv_transpose import conv_transpose2d
from synk.ops.convolve import conv2d
from synk.ops.cross_entropy import softmax_cross_entropy
from synk.ops.dropout import dropout
from synk.ops.edges import crop, pad
from synk.ops.group_norm import group_norm
from synk.ops.layer_norm import layer_norm
from synk.ops.lines import avg_pool1d, conv1d, conv_transpose1d, max_pool1d
from synk.ops.pool import avg_pool2d, global_avg_pool2d, max_pool2d
from synk.ops.upsample import upsample2d

__all__ = [
    "addend",
    "all_gather",
    "all_reduce",
    "all_sum",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "broadcast",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "crop",
    "dropout",
    "global_avg_pool2d",
    "group_norm",
    "layer_norm",
    "max_pool1d",
    "max_pool2d",
    "pad",
    "reduce_scatter",
    "relu",
    "softmax_cross_entropy",
    "upsample2d",
    "whole",
]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__
