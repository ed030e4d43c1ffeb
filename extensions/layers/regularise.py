"""Layers that do other things in training than in testing: batch normalisation and dropout.

training(x) -> y, updates of running statistics or of a random state
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.tensor.random import shared_rng

from synk import ops
from synk.extensions.initialisers import ones, zeros
from synk.extensions.layers.base import Layer, Pair, shared
from synk.extensions.layers.checks import IMAGES, checked, count


class BatchNorm(Layer):
    """Channels of mean zero and variance one, then scaled and shifted: `synk.ops.batch_norm`.

    In training ``mean`` and ``var`` are those of the batch, and the running ones follow by
    ``running := (1 - momentum) * running + momentum * batch``; in testing they are the running ones::

        y = (x - mean) / sqrt(var + eps) * gamma + beta

    Every rank and slice takes its own rows for a batch, unless `all_ranks`; the running statistics are
    averaged over the rows of all of them in the step.

    Parameters
    ----------
    n : int
        Channels, or units.
    momentum : float
        Weight of the batch in the running statistics.
    eps : float
    all_ranks : bool
        Whether statistics are those of all ranks' rows together.
    init : callable
        Of ``gamma``: `synk.extensions.initialisers.ones` or, at the end of a residual branch, ``zeros``.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``gamma`` and ``beta``, shape (n,).
    state
        ``mean`` and ``var``, shape (n,), the running statistics; the variance unbiased.

    Raises
    ------
    TypeError, ValueError
        `n` is no positive integer, the dtype another; or as of `synk.ops.batch_norm`.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    References
    ----------
    Ioffe and Szegedy (2015), arXiv:1502.03167; `gamma` of zero: Goyal and others (2017), arXiv:1706.02677.

    Examples
    --------
    >>> layer = layers.BatchNorm(3)
    >>> x = pt.fmatrix("x")
    >>> y, statistics = layer.training(x)
    >>> f = synk.function([x], y, updates=[(*pair, "avg") for pair in statistics])
    >>> f(np.ones((4, 3), "float32")).shape
    (4, 3)
    >>> layer.state["mean"].get_value()
    array([0.1, 0.1, 0.1], dtype=float32)
    """

    def __init__(
        self,
        n: int,
        *,
        momentum: float = 0.1,
        eps: float = 1e-5,
        all_ranks: bool = False,
        init: Callable[..., Any] = ones,
        dtype: str = "float32",
    ) -> None:
        self.n = count("n", n)
        self.options: dict[str, Any] = {"momentum": momentum, "eps": eps, "all_ranks": all_ranks}
        first = {"gamma": init, "beta": zeros, "mean": zeros, "var": ones}
        made = {key: shared(of, (self.n,), None, dtype) for key, of in first.items()}
        super().__init__(
            params={key: made[key] for key in ("gamma", "beta")},
            state={key: made[key] for key in ("mean", "var")},
        )

    def __call__(self, x: Any) -> Any:
        """Return channels normalised by the running statistics.

        Parameters
        ----------
        x : tensor, shape (rows, n) or (images, n, height, width)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, number of axes or of channels.
        """
        return self._normalised(x, train=False)[0]

    def training(self, x: Any) -> tuple[Any, list[Pair]]:
        """Return channels normalised by the statistics of the batch, and updates of the running ones.

        Parameters and errors are those of the call.
        """
        return self._normalised(x, train=True)

    def _normalised(self, x: Any, train: bool) -> tuple[Any, list[Pair]]:
        x = checked(self, x, [IMAGES, "rows, units"], length=self.n, dtype=self.params["gamma"].dtype)
        variables = [*self.params.values(), *self.state.values()]
        return ops.batch_norm(x, *variables, train=train, **self.options)

    def describe(self) -> str:
        """Tell the channels."""
        return str(self.n)


class Dropout(Layer):
    """In training, values set to zero at random and the others scaled up: `synk.ops.dropout`.

    What is kept is scaled by ``1 / (1 - rate)``, so nothing is done in testing.

    Parameters
    ----------
    rate : float
        Share of the values that are dropped, in ``[0, 1)``.
    seed : int or sequence of int
        Give each Dropout of a network another one. From one seed ranks draw different numbers, the same
        each run.

    Attributes
    ----------
    state
        ``rng``, the random state.

    Raises
    ------
    ValueError
        The rate is outside ``[0, 1)``.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    References
    ----------
    Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov (2014), "Dropout: a simple way to prevent
    neural networks from overfitting", JMLR 15:1929-1958.

    Examples
    --------
    >>> layer = layers.Dropout(0.5, seed=1)
    >>> x = pt.fmatrix("x")
    >>> y, advance = layer.training(x)
    >>> f = synk.function([x], y, updates=advance)
    >>> sorted(set(f(np.ones((40, 3), "float32")).ravel().tolist()))
    [0.0, 2.0]
    """

    def __init__(self, rate: float, *, seed: Any) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"rate={rate} is outside [0, 1); pass the share of values to drop")
        self.rate = rate
        super().__init__(state={"rng": shared_rng(np.random.default_rng(seed))})

    def __call__(self, x: Any) -> Any:
        """Return `x`."""
        return x

    def training(self, x: Any) -> tuple[Any, list[Pair]]:
        """Return `x` with values dropped, and the update of the random state.

        Parameters
        ----------
        x : PyTensor tensor
        """
        y, update = ops.dropout(x, self.rate, self.state["rng"])
        return y, [update]

    def describe(self) -> str:
        """Tell the rate."""
        return f"{self.rate}"
