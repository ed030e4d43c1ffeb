"""Ops on arrays of a GPU that is not there."""

from support.cupy.array_modules import device as device
