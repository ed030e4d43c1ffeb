"""Convolutions of images on NVIDIA GPUs by cuDNN 9, NVIDIA's library of kernels for networks.

    convolution  the provider: forward, input gradient, weight gradient
    descriptor   the lengths, strides and dtype of one convolution, as cuDNN needs them; arithmetic only
    cudnn_plan   makes a plan from a descriptor: cuDNN's graph, its fastest engine, bytes of workspace
    handle       cuDNN as one thread uses it: handle, stream, workspace, plans of the process
    find_cudnn   finds cuDNN's Python package and libraries, or says why they cannot be used

Importing this package loads no library and touches no GPU; that happens when a program for CuPy is compiled.
Tests build plans for an H200 without one; no plan has run on a GPU yet. The manual is at
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/.
"""

from synk.gpu.kernels.cudnn.convolution import CuDnn
from synk.gpu.kernels.cudnn.find_cudnn import available, reason, serves

__all__ = ["CuDnn", "available", "reason", "serves"]
