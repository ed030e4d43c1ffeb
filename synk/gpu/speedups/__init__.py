"""CUDA graphs: off by default, and unproven.

``fork(cuda_graphs=True)`` uses a device that records launches in place of `CudaDevice`, and only then imports
this folder; everything else works without it. Nothing in it has run on a GPU yet.
"""
