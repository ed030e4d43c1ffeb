"""Normalisation by statistics of each row, which are the same in training and testing, on any ranks.

x -> mean and variance of a row -> (x - mean) / sqrt(var + eps) * gamma + beta
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from synk import ops
from synk.extensions.initialisers import ones, zeros
from synk.extensions.layers.base import Layer, shared
from synk.extensions.layers.checks import IMAGES, checked, checked_last, count


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
        super().__init__(_scale_and_shift(self.n, init, dtype))

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


class GroupNorm(Layer):
    """Groups of each image's channels of mean zero and variance one: `synk.ops.group_norm`.

    Parameters
    ----------
    n : int
        Channels.
    groups : int
        Parts of the channels, side by side, which divide their number; as many as channels for instance
        normalisation.
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
        A number is no positive integer, the groups do not divide the channels, the dtype is another; or as of
        `synk.ops.group_norm`.

    See Also
    --------
    synk.extensions.layers.BatchNorm : statistics of the batch.

    References
    ----------
    Wu and He (2018), arXiv:1803.08494; instances: Ulyanov, Vedaldi and Lempitsky (2016), arXiv:1607.08022.

    Examples
    --------
    >>> layer = layers.GroupNorm(4, groups=2)
    >>> x = pt.fmatrix("x")
    >>> synk.function([x], layer(x))([[1.0, 3.0, 2.0, 6.0]]).round(3).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """

    def __init__(
        self,
        n: int,
        *,
        groups: int,
        eps: float = 1e-5,
        init: Callable[..., Any] = ones,
        dtype: str = "float32",
    ) -> None:
        self.n, self.groups, self.eps = count("n", n), count("groups", groups), eps
        if self.n % self.groups:
            raise ValueError(f"groups={groups} does not divide n={n} channels; pass a divisor")
        super().__init__(_scale_and_shift(self.n, init, dtype))

    def __call__(self, x: Any) -> Any:
        """Return normalised groups, shape of `x`.

        Parameters
        ----------
        x : tensor, shape (rows, n) or (images, n, height, width)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, number of axes or of channels.
        """
        gamma, beta = self.params.values()
        x = checked(self, x, [IMAGES, "rows, units"], length=self.n, dtype=gamma.dtype)
        return ops.group_norm(x, gamma, beta, self.groups, eps=self.eps)

    def describe(self) -> str:
        """Tell channels and groups."""
        return f"{self.n}, groups={self.groups}"


def _scale_and_shift(n: int, init: Callable[..., Any], dtype: str) -> dict[str, Any]:
    """Return the parameters of a normalisation by their names."""
    return {"gamma": shared(init, (n,), None, dtype), "beta": shared(zeros, (n,), None, dtype)}
