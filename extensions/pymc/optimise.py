"""Find the point of highest posterior density, with the rows of a model on all ranks if asked for.

find_MAP -> Prepared, without Jacobians -> SciPy's minimize -> a point of PyMC
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from pymc.util import get_random_generator
from scipy.optimize import minimize

import synk
from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.results import Expansion
from synk.extensions.pymc.runs import evaluating, model_of
from synk.extensions.pymc.starts import points_of, start_of


def find_MAP(
    method: str = "L-BFGS-B",
    *,
    initvals: Mapping[str, Any] | None = None,
    jitter: bool = False,
    random_seed: Any = None,
    shard: str | bool | None = None,
    cores: int | None = None,
    maxiter: int | None = None,
    model: Any = None,
    **optimizer_kwargs: Any,
) -> dict[str, np.ndarray]:
    """Return the local maximum of the posterior density, as ``pm.find_MAP`` does.

    A search that does not come to an end warns, with SciPy's message, and returns where it is.

    Parameters
    ----------
    method : str
        A method of `scipy.optimize.minimize` that takes a gradient.
    initvals : dict, optional
        Initial values, as in `sample`.
    jitter : bool
        Whether to begin beside the initial point, where ``random_seed`` says.
    random_seed : int, sequence of int or Generator, optional
    shard, cores
        As in `sample`: a dimension whose rows are split over the ranks. Without ``shard`` this process
        computes alone.
    maxiter : int, optional
        The largest number of iterations.
    model : pymc.Model, optional
        By default that of the ``with`` block.
    **optimizer_kwargs
        For `scipy.optimize.minimize`, such as ``tol``.

    Returns
    -------
    dict
        Values of variables and deterministics, and of transformed variables as PyMC names them.

    Raises
    ------
    pymc.exceptions.SamplingError
        If the log-density is not finite where the search begins.

    See Also
    --------
    synk.extensions.pymc.fit : normals around a point.

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import find_MAP
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> print(find_MAP(model=model)["mu"].round(2))
    4.5
    """
    prepared = Prepared(model_of(model, method), initvals, jacobian=False, jitter=jitter)
    expansion = Expansion(prepared)
    if maxiter is not None:
        optimizer_kwargs["options"] = {**optimizer_kwargs.get("options", {}), "maxiter": maxiter}
    with evaluating(prepared, shard, cores) as evaluate:

        def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = evaluate(vector)
            return -value, -gradient

        start = start_of(prepared, evaluate, points_of(prepared, get_random_generator(random_seed)))
        found = minimize(loss, start, jac=True, method=method, **optimizer_kwargs)
    if not found.success:
        warnings.warn(
            f"find_MAP stops after {found.nfev} evaluations, and returns where it is: {found.message}",
            synk.SynkWarning,
            stacklevel=2,
        )
    values = expansion.of(found.x[None, None])
    return {name: value[0, 0] for name, value in values.items()} | prepared.layout.split(found.x)
