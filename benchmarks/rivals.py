"""The rivals of synk's linker: PyTensor's own modes and torch, as far as they are installed.

    modes() -> {"synk": Mode, "PyTensor NUMBA": Mode, "PyTensor C": Mode}
    torch_or_none() -> module, held to one thread
    {name: Candidate} -> agree -> {name: step}, for `pairs.compare`

A missing rival is left out, with a line that says so.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile.mode import Mode, get_mode
from pytensor.configdefaults import config

from synk.compile import array_mode

SYNK = "synk"
NUMBA = "PyTensor NUMBA"
C = "PyTensor C"


class Candidate(NamedTuple):
    """One of several that should compute the same."""

    step: Callable[[], Any]
    values: Callable[[], Sequence[np.ndarray]]  # what the last step left


def agree(
    candidates: Mapping[str, Candidate], steps: int = 1, tolerance: float = 1e-5
) -> dict[str, Callable]:
    """Run some steps of each candidate and return the steps, if all came to the same numbers.

    Parameters
    ----------
    candidates : mapping of str to Candidate
        At the same starting point.
    steps : int
    tolerance : float
        How far an array may be from the first candidate's, relative to the largest number in it: float32
        has 6e-8, and sums in another order, of up to 800 products, err by a few of these.

    Raises
    ------
    SystemExit
        A candidate came to other numbers: its time would say nothing.
    """
    for candidate in candidates.values():
        for _ in range(steps):
            candidate.step()
    expected, *_ = (candidate.values() for candidate in candidates.values())
    for name, candidate in candidates.items():
        for number, (value, right) in enumerate(zip(candidate.values(), expected, strict=True)):
            error = np.abs(np.subtract(value, right, dtype="float64")).max() / np.abs(right).max()
            if not error <= tolerance:
                raise SystemExit(f"{name} computes other numbers: array {number} is off by {error:.1e}")
    return {name: candidate.step for name, candidate in candidates.items()}


def present(quick: bool = False) -> tuple[dict[str, Mode | str], ModuleType | None]:
    """Return the modes and torch; with `quick` of the modes only synk's, as others compile for long."""
    return {SYNK: array_mode()} if quick else modes(), torch_or_none()


@cache
def modes() -> dict[str, Mode | str]:
    """Return the modes to compile in; the first is synk's."""
    found: dict[str, Mode | str] = {SYNK: array_mode()}
    if find_spec("numba"):
        found[NUMBA] = "NUMBA"
    else:
        leave_out(NUMBA, "numba is not installed")
    if config.cxx:
        found[C] = get_mode("CVM")
    else:
        leave_out(C, "there is no C++ compiler")
    return found


@cache
def torch_or_none() -> ModuleType | None:
    """Return torch with one thread, or None where it is not installed."""
    if not find_spec("torch"):
        leave_out("torch", "it is not installed: make bench installs it in an environment of its own")
        return None
    import torch

    torch.set_num_threads(1)
    return torch


def leave_out(name: str, reason: str) -> None:
    """Say that a candidate does not take part, and why."""
    print(f"without {name}: {reason}", file=sys.stderr)
