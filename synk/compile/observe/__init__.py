"""Observers around every node of a program: they check its results, or measure time and memory."""
