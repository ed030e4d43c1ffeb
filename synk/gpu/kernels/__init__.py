"""Kernels of networks in CUDA and cuDNN."""
