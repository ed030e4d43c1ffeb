"""Find MPI in this environment: mpi4py's module, and the program ``mpirun``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from synk.values.errors import SynkError

REMEDY = "several machines need mpi4py and an MPI: pip install 'synk-pytensor[mpi]'"


class MpiMissing(SynkError, ImportError):
    """A run on several machines was requested, but mpi4py, an MPI library or its ``mpirun`` is missing."""


def load_mpi() -> Any:
    """Return mpi4py's module, which initialises MPI in this process when it is first imported."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError if there is no MPI library
        raise MpiMissing(f"{REMEDY} ({error})") from error
    return MPI


def find_mpirun() -> str:
    """Return the path of this environment's own ``mpirun``, else of the one on PATH."""
    own = Path(sys.executable).parent / "mpirun"
    found = str(own) if own.exists() else shutil.which("mpirun")
    if found is None:
        raise MpiMissing(f"{REMEDY} (there is no mpirun, neither {own} nor on PATH)")
    return found
