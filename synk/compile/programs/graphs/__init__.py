"""Carry graphs between processes, replace variables in them, and remember whose lines built them."""
