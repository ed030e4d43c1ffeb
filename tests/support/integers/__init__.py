"""Compare random graphs of integers, truth values, repeated positions and running sums with NumPy."""
