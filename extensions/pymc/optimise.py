"""Find the point of highest posterior density, with the rows of a model on all ranks if asked for.

find_MAP -> Prepared, without Jacobians -> SciPy's minimize -> a point of PyMC
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
from scipy.optimize import minimize

from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.results import Expansion
from synk.extensions.pymc.runs import evaluating


def find_MAP(
    model: Any = None,
    *,
    method: str = "L-BFGS-B",
    initvals: Mapping[str, Any] | None = None,
    jitter: bool = False,
    random_seed: int = 0,
    shard: str | bool | None = None,
    cores: int | None = None,
    **optimizer_kwargs: Any,
) -> dict[str, np.ndarray]:
    """Return the local maximum of the posterior density, as ``pm.find_MAP`` does.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    method : str
        A method of `scipy.optimize.minimize` that takes a gradient.
    initvals : dict, optional
        Initial values, as in `sample`.
    jitter : bool
        Whether to begin beside the initial point, where ``random_seed`` says.
    shard, cores
        As in `sample`: a dimension whose rows are split over the ranks. Without ``shard`` this process
        computes alone.
    **optimizer_kwargs
        For `scipy.optimize.minimize`, such as ``tol``.

    Returns
    -------
    dict
        Values of variables and deterministics, and of transformed variables as PyMC names them.

    Raises
    ------
    RuntimeError
        If SciPy does not come to an end; the message is its own.
    """
    prepared = Prepared(pm.modelcontext(model), initvals, jacobian=False, jitter=jitter)
    with evaluating(prepared, shard, cores) as evaluate:

        def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = evaluate(vector)
            return -value, -gradient

        start = prepared.layout.join(prepared.start(random_seed))
        found = minimize(loss, start, jac=True, method=method, **optimizer_kwargs)
    if not found.success:
        raise RuntimeError(f"find_MAP, after {found.nfev} evaluations: {found.message}")
    values = Expansion(prepared.model, prepared.layout, None).of(found.x[None, None])
    return {name: value[0, 0] for name, value in values.items()} | prepared.layout.split(found.x)
