"""Import CuPy, but only when a GPU is wanted.

The import loads no driver, so it may happen before workers are forked, who then have the module already.

    import_cupy -> the module, or CudaUnavailable: which extra to install
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from synk.values.errors import CudaUnavailable

CUDA_13 = 13000


def import_cupy(version: int = 0) -> Any:
    """Return the module ``cupy``; ``version`` is that of the driver's CUDA, 0 where it is not known.

    Raise CudaUnavailable if CuPy is not installed, or cannot be imported.
    """
    try:
        return import_module("cupy")
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise CudaUnavailable(f"CuPy cannot be imported: {error}; {remedy(version)}") from error
        raise CudaUnavailable(f"GPUs need CuPy, which is not installed: {remedy(version)}") from None
    except Exception as error:  # libraries of CUDA that are not there, or not those it was built with
        raise CudaUnavailable(
            f"CuPy cannot be imported: {type(error).__name__}: {error}; {remedy(version)}"
        ) from error


def remedy(version: int = 0) -> str:
    """Return the command that installs the release of CuPy for a driver's CUDA version, 0 for unknown."""
    if not version:
        return (
            "pip install 'synk-pytensor[cuda13]' "
            "(for drivers that speak CUDA 12 only: 'synk-pytensor[cuda12]')"
        )
    return f"pip install 'synk-pytensor[{'cuda13' if version >= CUDA_13 else 'cuda12'}]'"
