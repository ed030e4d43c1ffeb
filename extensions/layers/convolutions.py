"""Layers of filters: convolutions, and transposed ones.

rng -> initialiser -> W, b -> conv2d(x, W, b), or conv_transpose2d(x, W, b)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from synk import ops
from synk.extensions.initialisers import he_normal
from synk.extensions.layers.base import Layer, named_weights, shared
from synk.extensions.layers.checks import IMAGES, checked, count


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
        self.n_in, self.n_out, groups, self.size = _channels(n_in, n_out, groups, size)
        self.options: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        W = shared(init, (self.n_out, self.n_in // groups, *self.size), rng, dtype)
        super().__init__(named_weights(W, self.n_out, bias, dtype))

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
        return _sizes(self.n_in, self.n_out, self.size) + _unusual(self.options)


class ConvTranspose(Layer):
    """Filters that spread every pixel, and make images larger: `synk.ops.conv_transpose2d`.

    Parameters
    ----------
    n_in, n_out : int
        Channels.
    size : int or (int, int)
        Height and width of the filters.
    stride, padding, output_padding, dilation, groups
        As of `synk.ops.conv_transpose2d`.
    bias : bool
        Whether there is a ``b``.
    init : callable
        Of ``W``; see `synk.extensions.initialisers`, which take its first axis for that of outputs. Biases
        begin as zeros.
    rng : numpy.random.Generator
        For the first values.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``W``, shape (n_in, n_out / groups, height, width), and ``b``, shape (n_out,).

    Raises
    ------
    TypeError, ValueError
        A number is no positive integer, `groups` does not divide the channels, `rng` is no generator, or the
        dtype another.

    See Also
    --------
    synk.extensions.layers.Conv : makes images smaller.

    Examples
    --------
    >>> layer = layers.ConvTranspose(4, 3, 2, stride=2, rng=np.random.default_rng(0))
    >>> x = pt.ftensor4("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 4, 8, 8), "float32")).shape
    (2, 3, 16, 16)
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        size: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: Any = 0,
        output_padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        init: Callable[..., Any] = he_normal,
        rng: Any,
        dtype: str = "float32",
    ) -> None:
        self.n_in, self.n_out, groups, self.size = _channels(n_in, n_out, groups, size)
        self.options: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "output_padding": output_padding,
            "dilation": dilation,
            "groups": groups,
        }
        W = shared(init, (self.n_in, self.n_out // groups, *self.size), rng, dtype)
        super().__init__(named_weights(W, self.n_out, bias, dtype))

    def __call__(self, x: Any) -> Any:
        """Return the larger images, shape (images, n_out, height, width).

        Parameters
        ----------
        x : 4-D tensor, shape (images, n_in, height, width)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, number of axes or of channels, or as of `synk.ops.conv_transpose2d`.
        """
        W = self.params["W"]
        x = checked(self, x, [IMAGES], length=self.n_in, dtype=W.dtype)
        return ops.conv_transpose2d(x, W, self.params.get("b"), **self.options)

    def describe(self) -> str:
        """Tell channels, size and what is not as usual."""
        return _sizes(self.n_in, self.n_out, self.size) + _unusual(self.options)


def _channels(n_in: Any, n_out: Any, groups: Any, size: Any) -> tuple[int, int, int, tuple[int, int]]:
    """Return checked numbers of channels and groups, and height and width of filters."""
    n_in, n_out, groups = count("n_in", n_in), count("n_out", n_out), count("groups", groups)
    if n_in % groups or n_out % groups:
        raise ValueError(f"groups={groups} does not divide n_in={n_in} and n_out={n_out}; pass a divisor")
    sizes = size if isinstance(size, tuple) else (size, size)
    if len(sizes) != 2:
        raise ValueError(f"size={size} is no pair; pass the height and the width of the filters")
    height, width = sizes
    return n_in, n_out, groups, (count("size", height), count("size", width))


def _sizes(n_in: int, n_out: int, size: tuple[int, int]) -> str:
    return f"{n_in} -> {n_out}, {size[0]} x {size[1]}"


def _unusual(options: dict[str, Any]) -> str:
    """Tell the options that are not as usual."""
    usual = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
    return "".join(f", {key}={value}" for key, value in options.items() if value != usual[key])
