"""Refuse to start where PyMC 6 or nutpie is missing; the other modules of the package import both."""

from __future__ import annotations

import re
import sys
from importlib import metadata

MISSING = "synk.extensions.pymc needs {what}. Use pip install 'synk-pytensor[pymc]'"
LEAST = {"pymc": (6, 4), "nutpie": (0, 16)}

version = tuple(sys.version_info[:3])
if version < (3, 12):
    present = ".".join(map(str, version))
    raise ModuleNotFoundError(
        f"synk.extensions.pymc needs Python 3.12 or newer, as PyMC 6 does; this is {present}, for which no "
        "package helps. Install synk-pytensor[pymc] in an environment of a newer Python",
        name="pymc",
    )
for name, least in LEAST.items():
    try:
        installed = metadata.version(name) or "of no version that its metadata tell"
    except metadata.PackageNotFoundError:
        raise ModuleNotFoundError(MISSING.format(what=f"{name}, which is not installed"), name=name) from None
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < least:
        wanted = ".".join(map(str, least))
        raise ImportError(MISSING.format(what=f"{name} {wanted} or newer; this is {installed}"), name=name)
