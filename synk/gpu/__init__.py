"""Everything that only runs with GPUs needs: devices, communicators, kernels and programs in CUDA."""
