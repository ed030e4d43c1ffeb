"""Give nutpie a log-density: as a function in C, or as one of Python.

Either way a draw is the point itself; what the model computes from it comes later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from nutpie.compile_pymc import CompiledPyMCModel
from nutpie.compiled_pyfunc import from_pyfunc


def in_python(log_density: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray) -> Any:
    """Return nutpie's model of a log-density with its gradient, whose chains begin at a point."""
    return from_pyfunc(
        start.size,
        make_logp_fn=lambda: log_density,
        make_expand_fn=lambda *seeds_and_chain: lambda point: {"point": point},
        expanded_dtypes=[np.dtype("float64")],
        expanded_shapes=[start.shape],
        expanded_names=["point"],
        make_initial_point_fn=lambda seed: start,
    )


def in_c(log_density: Any, start: np.ndarray) -> CompiledPyMCModel:
    """Return nutpie's model of a log-density in C, with ``address`` and ``data``, for which no Python runs.

    nutpie has such models for functions that Numba compiles.
    """
    return CompiledPyMCModel(
        compiled_logp_func=log_density,
        user_data=np.ctypeslib.as_array(ctypes.cast(log_density.data, ctypes.POINTER(ctypes.c_byte)), (1,)),
        compiled_expand_func=Address(ctypes.cast(copied, ctypes.c_void_p).value),
        initial_point_func=lambda seed: start,
        n_expanded=start.size,
        shape_info=(["point"], None, [start.shape]),
        dims={},
        shared_data={},
        shared_var_keys={},
        logp_func=None,
        expand_func=None,
        _n_dim=start.size,
        _shapes={"point": start.shape},
        _coords={},
    )


class Address(NamedTuple):
    """The address of a function in C."""

    address: int | None


@ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_uint64] * 2, *[ctypes.c_void_p] * 3)
def copied(size: int, length: int, point: int, draw: int, data: int) -> int:
    """Copy a point into a draw: nutpie calls this to expand a point, and here both are the same."""
    ctypes.memmove(draw, point, size * np.dtype("float64").itemsize)
    return 0
