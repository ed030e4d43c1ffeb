"""Rewrites of graphs for programs on GPUs."""
