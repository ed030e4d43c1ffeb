"""The path for GPUs: devices, communicators, kernels and programs in CUDA."""
