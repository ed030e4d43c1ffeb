"""Normalisation by statistics of each row, which are the same in training and testing, on any ranks.

x -> mean and variance of a row -> (x - mean) / sqrt(var + eps) * gamma + beta
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from synk import ops
from synk.extensions.initialisers import ones, zeros
from synk.extensions.layers.base import Layer, shared
from synk.extensions.layers.checks import checked_last, count


class LayerNorm(Layer):
    """Rows of mean zero and variance one, then scaled and shifted: `synk.ops.layer_norm`.

    Parameters
    ----------
    n : int
        Units: the length of the last axis, over which mean and variance are taken.
    eps : float
        Added to variances.
    init : callable
        Of ``gamma``; ``beta`` begins as zeros.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``gamma`` and ``beta``, shape (n,).

    Raises
    ------
    TypeError, ValueError
        `n` is no positive integer, the dtype another; or as of `synk.ops.layer_norm`.

    See Also
    --------
    synk.extensions.layers.BatchNorm : statistics of the batch.

    References
    ----------
    Ba, Kiros and Hinton (2016), arXiv:1607.06450.

    Examples
    --------
    >>> layer = layers.LayerNorm(2)
    >>> x = pt.fmatrix("x")
    >>> synk.function([x], layer(x))([[1.0, 3.0], [2.0, 6.0]]).round(3).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """

    def __init__(
        self, n: int, *, eps: float = 1e-5, init: Callable[..., Any] = ones, dtype: str = "float32"
    ) -> None:
        self.n, self.eps = count("n", n), eps
        first = {"gamma": init, "beta": zeros}
        super().__init__({key: shared(of, (self.n,), None, dtype) for key, of in first.items()})

    def __call__(self, x: Any) -> Any:
        """Return normalised rows, shape of `x`.

        Parameters
        ----------
        x : tensor, shape (rows, ..., n)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, one axis, or another number of units.
        """
        gamma, beta = self.params.values()
        return ops.layer_norm(checked_last(self, x, self.n, gamma.dtype), gamma, beta, eps=self.eps)

    def describe(self) -> str:
        """Tell the units."""
        return str(self.n)
