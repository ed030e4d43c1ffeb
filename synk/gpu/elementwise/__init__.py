"""Chains of elementwise Ops as CUDA kernels."""
