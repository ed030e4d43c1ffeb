"""Layers of weights: dense ones and convolutions.

rng -> initialiser -> W, b -> x @ W + b, or conv2d(x, W, b)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from synk import ops
from synk.extensions.initialisers import he_normal, zeros
from synk.extensions.layers.base import Layer, shared
from synk.extensions.layers.checks import IMAGES, checked, count


class Dense(Layer):
    """Every output a weighted sum of all inputs: ``x @ W + b``.

    Parameters
    ----------
    n_in, n_out : int
        Units.
    bias : bool
        Whether there is a ``b``.
    init : callable
        Of ``W``; see `synk.extensions.initialisers`. Biases begin as zeros.
    rng : numpy.random.Generator
        For the first values.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``W``, shape (n_in, n_out), and ``b``, shape (n_out,).

    Raises
    ------
    TypeError, ValueError
        A number is no positive integer, `rng` no generator, or the dtype another.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.Dense(3, 5, rng=np.random.default_rng(0))
    >>> x = pt.fmatrix("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3), "float32")).shape
    (2, 5)
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        bias: bool = True,
        init: Callable[..., Any] = he_normal,
        rng: Any,
        dtype: str = "float32",
    ) -> None:
        self.n_in, self.n_out = count("n_in", n_in), count("n_out", n_out)
        W = shared(init, (self.n_in, self.n_out), rng, dtype)
        super().__init__(_with_bias(W, self.n_out, bias, dtype))

    def __call__(self, x: Any) -> Any:
        """Return the outputs, shape (rows, n_out).

        Parameters
        ----------
        x : matrix, shape (rows, n_in)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, number of axes or of units.
        """
        W = self.params["W"]
        y = checked(self, x, ["rows, units"], length=self.n_in, dtype=W.dtype) @ W
        return y + self.params["b"] if "b" in self.params else y

    def describe(self) -> str:
        """Tell the units."""
        return f"{self.n_in} -> {self.n_out}"


class Conv(Layer):
    """Filters that slide over images: `synk.ops.conv2d`.

    Parameters
    ----------
    n_in, n_out : int
        Channels.
    size : int or (int, int)
        Height and width of the filters.
    stride, padding, dilation, groups
        As of `synk.ops.conv2d`.
    bias : bool
        Whether there is a ``b``; before a `BatchNorm`, which takes out any constant, it is of no use.
    init : callable
        Of ``W``; see `synk.extensions.initialisers`. Biases begin as zeros.
    rng : numpy.random.Generator
        For the first values.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``W``, shape (n_out, n_in / groups, height, width), and ``b``, shape (n_out,).

    Raises
    ------
    TypeError, ValueError
        A number is no positive integer, `groups` does not divide the channels, `rng` is no generator, or the
        dtype another.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.Conv(3, 4, 3, padding=1, rng=np.random.default_rng(0))
    >>> x = pt.ftensor4("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3, 8, 8), "float32")).shape
    (2, 4, 8, 8)
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        size: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: Any = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        init: Callable[..., Any] = he_normal,
        rng: Any,
        dtype: str = "float32",
    ) -> None:
        self.n_in, self.n_out, groups = count("n_in", n_in), count("n_out", n_out), count("groups", groups)
        if self.n_in % groups or self.n_out % groups:
            raise ValueError(f"groups={groups} does not divide n_in={n_in} and n_out={n_out}; pass a divisor")
        height, width = size if isinstance(size, tuple) else (size, size)
        self.size = count("size", height), count("size", width)
        self.options: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        W = shared(init, (self.n_out, self.n_in // groups, *self.size), rng, dtype)
        super().__init__(_with_bias(W, self.n_out, bias, dtype))

    def __call__(self, x: Any) -> Any:
        """Return the filtered images, shape (images, n_out, height, width).

        Parameters
        ----------
        x : 4-D tensor, shape (images, n_in, height, width)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, number of axes or of channels, or as of `synk.ops.conv2d`.
        """
        W = self.params["W"]
        x = checked(self, x, [IMAGES], length=self.n_in, dtype=W.dtype)
        return ops.conv2d(x, W, self.params.get("b"), **self.options)

    def describe(self) -> str:
        """Tell channels, size and what is not as usual."""
        usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        unusual = [f", {key}={value}" for key, value in self.options.items() if value != usual[key]]
        return f"{self.n_in} -> {self.n_out}, {self.size[0]} x {self.size[1]}" + "".join(unusual)


def _with_bias(W: Any, n_out: int, bias: bool, dtype: str) -> dict[str, Any]:
    """Return weights and, where there are to be some, zero biases by their names."""
    if not bias:
        return {"W": W}
    return {"W": W, "b": shared(zeros, (n_out,), None, dtype)}
