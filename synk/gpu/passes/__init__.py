"""Decide which arrays of a program for a GPU have 16 bits.

What is decided for processors as well, such as which elementwise Ops are joined, is in
`synk.compile.programs`.
"""
