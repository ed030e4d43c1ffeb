"""Rewrites of graphs: PyTensor's that hold, and ours."""
