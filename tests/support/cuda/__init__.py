"""CUDA without a GPU: its driver, its compiler, and emulators that run kernels on the host."""
