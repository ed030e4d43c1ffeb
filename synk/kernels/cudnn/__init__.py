"""Convolutions of images on NVIDIA GPUs by cuDNN 9, NVIDIA's library of kernels for networks.

    library      find the Python front end and the libraries behind it, or say why there are none
    problem      one convolution as cuDNN is told of it: lengths, strides, dtype; pure arithmetic
    planner      a problem becomes a plan: the graph, the engine that heuristics choose, bytes of workspace
    engine       cuDNN as one thread uses it: handle, stream, workspace, plans of the process
    convolution  the provider: forward, input gradient, weight gradient

Importing this loads nothing and touches no GPU; the library is loaded when a program for CuPy is compiled.
Plans are built in tests, for a GPU that need not be there; none has run on one yet. The manual is at
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/. Imports NumPy, and of synk only
``kernels.window`` and ``kernels.im2col``.
"""

from synk.kernels.cudnn.convolution import CuDnn
from synk.kernels.cudnn.library import available, reason, serves

__all__ = ["CuDnn", "available", "reason", "serves"]
