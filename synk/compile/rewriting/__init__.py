"""Rewrites of graphs: PyTensor's, without those that give wrong numbers, and our own."""
