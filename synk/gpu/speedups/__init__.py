"""CUDA graphs: off by default, and unproven.

``fork(cuda_graphs=True)`` puts a device that records in the place of the usual one, and imports this folder
only then: all else works without it. Nothing in it has run on a GPU yet.
"""
