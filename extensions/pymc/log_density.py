"""The log-density of a model and its gradient as a function of a vector, for samplers of one's own.

compile_logp_dlogp -> LogDensity(vector) -> value, gradient;  LogDensity.tree(vectors) -> DataTree
"""

from __future__ import annotations

from typing import Any

import numpy as np

import synk
from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.results import tree_of_points
from synk.extensions.pymc.runs import model_of


class LogDensity:
    """A log-density and its gradient; made by `compile_logp_dlogp`.

    Attributes
    ----------
    size : int
        Elements of a vector.
    names : tuple of str
        The variables that lie in a vector, one after the other, named as PyMC names their values:
        ``"sigma_log__"`` is on the scale of logarithms.

    See Also
    --------
    synk.extensions.pymc.compile_logp_dlogp : makes it.

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import compile_logp_dlogp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> density = compile_logp_dlogp(model)
    >>> density.size, density.names
    (1, ('mu',))
    """

    def __init__(self, model: Any, prepared: Prepared, shard: str | bool | None):
        self.size = prepared.layout.size
        self.names = prepared.layout.names
        self._model, self._names = model, set(model.named_vars)
        data = [one for one in model.data_vars if hasattr(one, "container")]
        self._data = [(one.name, one.container.storage, one.container.storage[0]) for one in data]
        self._prepared = prepared
        self._evaluate = prepared.on_all_ranks(shard) if shard else prepared.here()

    def __call__(self, vector: Any) -> tuple[float, np.ndarray]:
        """Return the log-density at a vector, and its gradient there.

        Raises
        ------
        ValueError
            If the vector has another shape.
        SynkStateError
            If the model was changed since this was compiled; with ``shard``, if its run was closed.
        """
        vector = np.asarray(vector, dtype="float64")
        if vector.shape != (self.size,):
            raise ValueError(f"vector has shape {vector.shape}, but the model takes ({self.size},)")
        self._check_unchanged()
        return self._evaluate(vector)

    def _check_unchanged(self) -> None:
        changed = [name for name, storage, array in self._data if storage[0] is not array]
        if len(self._model.named_vars) != len(self._names):
            changed += set(self._model.named_vars) ^ self._names
        if changed:
            raise synk.SynkStateError(
                f"{', '.join(changed)}: changed since the model was compiled; compile it again"
            )

    def initial_point(self, seed: int) -> np.ndarray:
        """Return a vector at which a chain may begin, as PyMC chooses it, with its jitter."""
        return self._prepared.layout.join(self._prepared.start(seed))

    def split(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the variables of a vector, as a point of PyMC."""
        return self._prepared.layout.split(np.asarray(vector))

    def join(self, point: dict[str, Any]) -> np.ndarray:
        """Return the vector of a point of PyMC."""
        return self._prepared.layout.join(point)

    def tree(self, vectors: Any) -> Any:
        """Return vectors as `sample` returns draws: a DataTree with variables and deterministics.

        Parameters
        ----------
        vectors : array_like, shape (chains, draws, size)
        """
        vectors = np.asarray(vectors, dtype="float64")
        if vectors.ndim != 3 or vectors.shape[2] != self.size:
            raise ValueError(f"vectors have shape {vectors.shape}, not (chains, draws, {self.size})")
        return tree_of_points(self._prepared, vectors)


def compile_logp_dlogp(model: Any = None, shard: str | bool | None = None) -> LogDensity:
    """Compile the log-density of a model and its gradient.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    shard : str or True, optional
        A dimension whose rows are split over the ranks of the open run, which evaluate together, as in
        `sample`.
        By default this process evaluates by itself, and needs no run.

    Returns
    -------
    LogDensity
        Called with a vector, it returns the value and the gradient. It includes the Jacobian terms of PyMC's
        transforms, as its samplers do.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As `sample`.
    SynkStateError
        With ``shard``, if no run is open.

    See Also
    --------
    synk.extensions.pymc.sample : calls a sampler with it.

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import compile_logp_dlogp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> density = compile_logp_dlogp(model)
    >>> value, gradient = density(np.array([4.5]))
    >>> gradient.round(3)
    array([-0.045])
    """
    model = model_of(model)
    if shard and not synk.is_open():
        raise synk.SynkStateError(f"shard={shard!r}: no run is open; call synk.fork() first")
    return LogDensity(model, Prepared(model), shard)
