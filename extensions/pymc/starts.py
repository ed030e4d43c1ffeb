"""Find where a chain, a search or a fit begins: at the first of some points with a finite log-density.

initvals -> named -> initial_points: a point for a seed
         -> points_of some seeds -> first_finite, or StartError -> PyMC's sampling_error, with the terms there
         -> start_of: all of it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.initial_point import convert_str_to_rv_dict, make_initial_point_expression
from pymc.pytensorf import compile as compiled
from pymc.pytensorf import find_rng_nodes, replace_rng_nodes, reseed_rngs
from pytensor.compile.mode import FAST_COMPILE, Mode

from synk.compile import ArrayLinker, array_mode

TRIES = 10  # of initial points


class StartError(ValueError):
    """The log-density is finite at none of the initial points.

    Attributes
    ----------
    point : ndarray
        The first of these points.
    """

    def __init__(self, why: str, point: np.ndarray):
        super().__init__(why)
        self.point = point


def named(model: Any, initvals: Any) -> dict[str, Any]:
    """Return initial values by the names of their variables.

    A copy of the model has other variables than those that the user knows, but with the same names.

    Raises
    ------
    TypeError
        If ``initvals`` is no dictionary.
    ValueError
        If it has a value for a variable that is not a free one of the model.
    """
    if initvals is None:
        return {}
    if not isinstance(initvals, Mapping):
        raise TypeError(f"initvals is a {type(initvals).__name__}; pass one dictionary, for all chains")
    found = {str(getattr(key, "name", key)): value for key, value in initvals.items()}
    known = [rv.name for rv in model.free_RVs]
    values = {model.rvs_to_values[rv].name for rv in model.free_RVs}
    if unknown := [name for name in found if name not in values.union(known)]:
        raise ValueError(
            f"initvals has {', '.join(unknown)}; the model's free variables are {', '.join(known)}"
        )
    return found


def initial_points(model: Any, initvals: Mapping[str, Any], jitter: bool) -> Callable[[int], dict[str, Any]]:
    """Return a function of a seed that returns a point, the one at which PyMC begins."""
    values = make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=model.rvs_to_initial_values | convert_str_to_rv_dict(model, initvals),
        jitter_rvs=set(model.free_RVs) if jitter else None,
        return_transformed=True,
    )
    # PyMC's own function has FAST_COMPILE's linker, which compiles a virtual machine first, in C, and then
    # runs the Ops one by one too.
    function = compiled(
        [], replace_rng_nodes(values), mode=Mode(ArrayLinker(native=False), FAST_COMPILE.provided_optimizer)
    )
    generators = find_rng_nodes(function.maker.fgraph.outputs)
    names = [model.rvs_to_values[rv].name for rv in model.free_RVs]

    def point(seed: int) -> dict[str, Any]:
        reseed_rngs(generators, seed)
        return dict(zip(names, function(), strict=True))

    return point


def points_of(prepared: Any, generator: np.random.Generator) -> np.ndarray:
    """Return random initial points, one vector a row."""
    seeds = generator.integers(2**30, size=TRIES).tolist()
    return np.array([prepared.layout.join(prepared.start(seed)) for seed in seeds])


def first_finite(evaluate: Callable[[np.ndarray], Any], points: Iterable[np.ndarray]) -> np.ndarray:
    """Return the first point at which a log-density and its gradient are finite.

    Raises
    ------
    StartError
        If there is none.
    """
    tried: list[tuple[str, np.ndarray]] = []
    for point in points:
        value, gradient = evaluate(point)
        n_bad = int(np.sum(~np.isfinite(gradient)))
        if np.isfinite(value) and not n_bad:
            return point
        how = f"it is {value:.6g}, and {n_bad} of {gradient.size} elements of its gradient are not finite"
        tried.append((how, point))
    how, first = tried[0]
    raise StartError(f"the log-density is not finite at any initial point: at the first {how}", first)


def start_of(
    prepared: Any, evaluate: Callable[[np.ndarray], Any], points: Iterable[np.ndarray]
) -> np.ndarray:
    """Return the first point with a finite log-density and gradient, or raise `sampling_error`."""
    try:
        return first_finite(evaluate, points)
    except StartError as error:
        raise sampling_error(prepared, error) from None


def sampling_error(prepared: Any, error: StartError) -> Exception:
    """Return PyMC's error, with the point and with the terms of the log-density there."""
    point = prepared.layout.split(error.point)
    terms = prepared.model.point_logps(point, mode=array_mode())
    at = "\n".join(f"  {name} = {np.array2string(value, threshold=8)}" for name, value in point.items())
    listed = "\n".join(f"  {name}: {value}" for name, value in terms.items())
    return pm.exceptions.SamplingError(f"{error}:\n{at}\nIts terms there:\n{listed}")
