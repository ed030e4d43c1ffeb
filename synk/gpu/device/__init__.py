"""GPUs: found without initialising CUDA, used through CuPy, and fed with rows from the host."""
