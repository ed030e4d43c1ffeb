"""Compile C, keep the machine code in a store that processes share, and load it."""
