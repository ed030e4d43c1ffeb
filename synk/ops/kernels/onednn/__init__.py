"""Convolutions of float32 images by oneDNN, Intel's library of kernels for x86-64 processors.

    convolution       the provider: forward, input gradient, weight gradient
    shapes            lengths and strides of a convolution; which of oneDNN's ways to compute it is fastest
    steps             the steps of a convolution: the primitives (oneDNN's functions) that are run in turn
    plan_builder      makes the primitives and their memory objects for one set of shapes
    convolution_plan  the finished plan, ready to run
    engine            the library as a process uses it: one thread, one workspace
    binding           the library's functions, constants and errors, through ctypes

Importing this package loads no library; that happens when the first kernel runs, or `available` is called.
oneDNN's manual is at https://oneapi-src.github.io/oneDNN/v3.2/.
"""

from synk.compile.native.find_onednn import available, reason
from synk.ops.kernels.onednn.convolution import OneDnn
from synk.ops.kernels.onednn.engine import threads

__all__ = ["OneDnn", "available", "reason", "threads"]
