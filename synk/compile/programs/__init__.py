"""Make a Python program of a graph: passes decide about it, then its text is written."""
