"""Wrap a log-density as a model of nutpie: a function in C, or one in Python.

In both, a draw is the unconstrained point itself; deterministics are computed later, by `results.Expansion`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from nutpie.compile_pymc import CompiledPyMCModel
from nutpie.compiled_pyfunc import from_pyfunc


def in_python(log_density: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray) -> Any:
    """Return nutpie's model of a Python function that returns a log-density and its gradient at a point.

    Chains begin at ``start``.
    """
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
    """Return nutpie's model of a log-density in C, which the sampler calls without running Python.

    ``log_density`` has the ``address`` of the function and its ``data``. nutpie made this kind of model for
    functions compiled by Numba.
    """
    return CompiledPyMCModel(
        compiled_logp_func=log_density,
        user_data=np.ctypeslib.as_array(ctypes.cast(log_density.data, ctypes.POINTER(ctypes.c_byte)), (1,)),
        compiled_expand_func=Address(ctypes.cast(copy_point, ctypes.c_void_p).value),
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
def copy_point(size: int, length: int, point: int, draw: int, data: int) -> int:
    """Copy a point into a draw: nutpie calls this to expand a point, and here both are the same."""
    ctypes.memmove(draw, point, size * np.dtype("float64").itemsize)
    return 0
