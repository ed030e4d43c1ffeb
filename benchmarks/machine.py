"""Limit the numeric libraries to one thread, and describe the machine in one line.

Import it before NumPy, PyTensor and torch: they read the environment when they are loaded.
"""

import os

for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

# After the loop: with synk comes NumPy.
from synk.tools.bench import how_busy  # noqa: E402

OTHERS = ("numba", "torch", "jax")


def describe() -> str:
    """Return processor, cores, load, Python and the versions of what is measured."""
    return "; ".join(how_busy.describe({package: how_busy.installed(package) for package in OTHERS}).lines())
