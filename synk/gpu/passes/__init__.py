"""Decide which arrays of a program for a GPU have 16 bits.

Decisions that are made for processors as well, such as which elementwise Ops are fused, are in
`synk.compile.programs`.
"""
