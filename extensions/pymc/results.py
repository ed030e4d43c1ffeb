"""Turn unconstrained draws into what `pm.sample` returns: a tree of data sets with coordinates.

Drawn -> expanded: values of variables and deterministics -> tree;  vectors alone -> tree_of_points
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import arviz_base
import numpy as np
import pymc as pm
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pymc.pytensorf import compile as compiled

from synk.compile import array_mode
from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.graph import of_vector
from synk.extensions.pymc.record import Drawn

NOT_STATS = ("chain", "draw")  # which are coordinates


class Expansion:
    """Computes the values of variables and deterministics from unconstrained points.

    Parameters
    ----------
    prepared : Prepared
    var_names : sequence of str or str, optional
        By default all.
    seed : int, optional
        For deterministics that draw random numbers, new ones for each point.
    """

    def __init__(self, prepared: Prepared, var_names: Sequence[str] | str | None = None, seed: Any = None):
        self._prepared, model = prepared, prepared.model
        known = {rv.name: rv for rv in [*model.free_RVs, *model.deterministics]}
        self.names = _chosen(var_names, list(known))
        wanted = model.replace_rvs_by_values([known[name] for name in self.names])
        point, outputs = of_vector(wanted, model, prepared.layout)
        self._function = compiled(
            [point], outputs, random_seed=seed, mode=array_mode(), on_unused_input="ignore"
        )
        self._start = prepared.layout.join(prepared.start(0))

    @cached_property
    def _example(self) -> list[np.ndarray]:
        return self._values(self._start)

    def check(self) -> None:
        """Compute the values of one point, so that errors come before there are draws."""
        _ = self._example

    def without_deterministics(self) -> Expansion:
        """Return an expansion to the chosen free variables, or to all of them if none was chosen."""
        free = [rv.name for rv in self._prepared.model.free_RVs]
        return Expansion(self._prepared, [name for name in free if name in self.names] or free)

    def _values(self, point: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(value) for value in self._function(point)]

    def of(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Return arrays of shape (chains, draws, ...) of points of shape (chains, draws, size)."""
        chains, draws, size = points.shape
        made = [np.empty((chains * draws, *one.shape), one.dtype) for one in self._example]
        for number, point in enumerate(points.reshape(chains * draws, size)):
            for array, value in zip(made, self._values(point), strict=True):
                array[number] = value
        found = [array.reshape(chains, draws, *array.shape[1:]) for array in made]
        return dict(zip(self.names, found, strict=True))


def _chosen(var_names: Sequence[str] | str | None, known: list[str]) -> list[str]:
    """Return the names in ``known`` that are chosen; raise ValueError for an unknown name, or for none."""
    if var_names is None:
        return known
    wanted = [var_names] if isinstance(var_names, str) else list(var_names)
    if not wanted or set(wanted) - set(known):
        unknown = ", ".join(sorted(set(wanted) - set(known))) or "no variable"
        raise ValueError(f"var_names has {unknown}; the model has {', '.join(known)}")
    return [name for name in known if name in wanted]


def tree(
    model: Any,
    expansion: Expansion,
    drawn: Drawn,
    warmup: Drawn | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Return posterior, sample_stats, observed_data and constant_data, and the warm-up if there is one.

    The attributes are those of the posterior, and stats have those that name the sampler.
    """
    coords, dims = coords_and_dims_for_inferencedata(model)
    groups = {"posterior": expansion.of(drawn.points), "sample_stats": stats_of(drawn)}
    if warmup is not None:
        groups["warmup_posterior"] = expansion.of(warmup.points)
        groups["warmup_sample_stats"] = stats_of(warmup)
    groups["observed_data"] = find_observations(model)
    groups["constant_data"] = find_constants(model)
    found = arviz_base.from_dict(
        {name: group for name, group in groups.items() if group},
        coords={**coords, "chain": drawn.chains},
        dims=dims,
        save_warmup=True,
        check_conventions=False,  # there may be fewer draws than chains
    )
    sampler = {name: value for name, value in (attributes or {}).items() if name.startswith("inference")}
    for name, group in found.children.items():
        if name.endswith("sample_stats"):
            group.attrs.update(sampler)
    found.posterior.attrs.update(
        modeling_interface="pymc", modeling_interface_version=pm.__version__, **(attributes or {})
    )
    return found


def tree_of_points(prepared: Prepared, points: np.ndarray) -> Any:
    """Return a posterior and the data, of unconstrained points of shape (chains, draws, size)."""
    return tree(prepared.model, Expansion(prepared), Drawn(list(range(len(points))), points, {}))


def stats_of(drawn: Drawn) -> dict[str, np.ndarray]:
    """Return the sampler's numbers of each draw."""
    return {name: values for name, values in drawn.stats.items() if name not in NOT_STATS}
