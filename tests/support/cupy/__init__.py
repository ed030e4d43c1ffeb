"""CuPy without a GPU: an array module as strict about transfers, its streams, graphs and cuBLAS."""
