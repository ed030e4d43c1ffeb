"""Convolutions of images on NVIDIA GPUs by cuDNN 9, NVIDIA's library of kernels for networks.

    convolution  the provider: forward, input gradient, weight gradient
    descriptor   one convolution as cuDNN is told of it: lengths, strides, dtype; pure arithmetic
    cudnn_plan   makes of it a plan: the graph, the engine that heuristics choose, bytes of workspace
    handle       cuDNN as one thread uses it: handle, stream, workspace, plans of the process
    find_cudnn   finds the Python front end and the libraries behind it, or says why there are none

Importing this loads nothing and touches no GPU; the library is loaded when a program for CuPy is compiled.
Plans are built in tests, for a GPU that need not be there; none has run on one yet. The manual is at
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/.
"""

from synk.gpu.kernels.cudnn.convolution import CuDnn
from synk.gpu.kernels.cudnn.find_cudnn import available, reason, serves

__all__ = ["CuDnn", "available", "reason", "serves"]
