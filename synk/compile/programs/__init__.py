"""A graph as a Python program: what is decided about it, and its text."""
