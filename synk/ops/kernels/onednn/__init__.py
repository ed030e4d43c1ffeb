"""Convolutions of float32 images by oneDNN, Intel's library of kernels for x86-64 processors.

    convolution       the provider: forward, input gradient, weight gradient
    shapes            lengths and strides of a convolution; which of oneDNN's ways to compute it is fastest
    steps             the steps of a convolution, as primitives
    plan_builder      makes them, with their memory objects, for one set of shapes
    convolution_plan  what it made, ready to run
    engine            the library as a process uses it: one thread, one workspace
    binding           its functions, constants and errors, through ctypes

Importing this loads nothing; the library is loaded when the first kernel runs, or `available` is asked.
oneDNN's manual is at https://oneapi-src.github.io/oneDNN/v3.2/.
"""

from synk.compile.native.find_onednn import available, reason
from synk.ops.kernels.onednn.convolution import OneDnn
from synk.ops.kernels.onednn.engine import threads

__all__ = ["OneDnn", "available", "reason", "threads"]
