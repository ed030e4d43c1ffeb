"""Convolutions of float32 images by oneDNN, Intel's library of kernels for x86-64 processors.

    library      find the shared library, or say why there is none
    binding      its functions, constants and errors, through ctypes
    engine       the library as a process uses it: one thread, one workspace
    memory       how arrays lie in memory, told by strides
    shapes       lengths and strides of a convolution; which of oneDNN's ways to compute it is fastest
    recipes      the steps of a convolution, as primitives
    plan         primitives and their memory objects for one set of shapes, ready to run
    convolution  the provider: forward, input gradient, weight gradient

Importing this loads nothing; the library is loaded when the first kernel runs, or `available` is asked.
oneDNN's manual is at https://oneapi-src.github.io/oneDNN/v3.2/. Imports NumPy, and of synk only
``compile.elementwise`` and ``kernels.window``.
"""

from synk.kernels.onednn.binding import OneDnnError, Unsupported
from synk.kernels.onednn.convolution import OneDnn
from synk.kernels.onednn.engine import threads
from synk.kernels.onednn.library import available, reason

__all__ = ["OneDnn", "OneDnnError", "Unsupported", "available", "reason", "threads"]
