"""Make what `pm.sample` returns of unconstrained draws: a tree of data sets, with coordinates.

Drawn -> expanded: values of variables and deterministics -> tree;  vectors alone -> tree_of_points
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import arviz_base
import numpy as np
import pymc as pm
import pytensor
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations

from synk.compile import array_mode
from synk.extensions.pymc.graph import Layout, of_vector
from synk.extensions.pymc.record import Drawn

NOT_STATS = ("chain", "draw")  # which are coordinates


class Expansion:
    """The values that are returned of an unconstrained point: of variables and deterministics."""

    def __init__(self, model: Any, layout: Layout, var_names: Sequence[str] | None):
        known = {rv.name: rv for rv in [*model.free_RVs, *model.deterministics]}
        unknown = sorted(set(var_names or ()) - set(known))
        if unknown:
            raise ValueError(f"var_names has {', '.join(unknown)}; the model has {', '.join(known)}")
        self.names = list(known) if var_names is None else [name for name in known if name in var_names]
        wanted = model.replace_rvs_by_values([known[name] for name in self.names])
        self._graph = of_vector(wanted, model, layout)

    @cached_property
    def _function(self) -> Any:
        point, outputs = self._graph  # not before there are draws: the first one is waited for
        return pytensor.function([point], outputs, mode=array_mode(), on_unused_input="ignore")

    def of(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Return arrays of shape (chains, draws, ...) of points of shape (chains, draws, size)."""
        chains, draws, size = points.shape
        made: list[np.ndarray] = []
        for number, point in enumerate(points.reshape(-1, size)):
            values = self._function(point)
            made = made or [
                np.empty((chains * draws, *np.shape(one)), np.asarray(one).dtype) for one in values
            ]
            for array, value in zip(made, values, strict=True):
                array[number] = value
        found = [array.reshape(chains, draws, *array.shape[1:]) for array in made]
        return dict(zip(self.names, found, strict=False))


def tree(
    model: Any,
    expansion: Expansion,
    drawn: Drawn,
    warmup: Drawn | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Return posterior, sample_stats, observed_data and constant_data, and the warm-up if there is one.

    The attributes are those of the posterior.
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
    )
    found.posterior.attrs.update(
        modeling_interface="pymc", modeling_interface_version=pm.__version__, **(attributes or {})
    )
    return found


def tree_of_points(model: Any, layout: Layout, points: np.ndarray) -> Any:
    """Return a posterior and the data, of unconstrained points of shape (chains, draws, size)."""
    return tree(model, Expansion(model, layout, None), Drawn(list(range(len(points))), points, {}))


def stats_of(drawn: Drawn) -> dict[str, np.ndarray]:
    """Return the sampler's numbers of each draw."""
    return {name: values for name, values in drawn.stats.items() if name not in NOT_STATS}
