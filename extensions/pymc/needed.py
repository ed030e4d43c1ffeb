"""Refuse to start where PyMC 6 or nutpie is missing; the other modules of the package import both."""

from __future__ import annotations

import sys
from importlib.util import find_spec

MISSING = "synk.extensions.pymc needs {what}. Use pip install 'synk[pymc]'"

version = tuple(sys.version_info[:3])
if version < (3, 12):
    present = ".".join(map(str, version))
    raise ModuleNotFoundError(
        MISSING.format(what=f"Python 3.12 or newer, as PyMC 6 does; this is {present}"), name="pymc"
    )
for name in ("pymc", "nutpie"):
    if find_spec(name) is None:
        raise ModuleNotFoundError(MISSING.format(what=f"{name}, which is not installed"), name=name)
