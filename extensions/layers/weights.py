"""Layers of weights: dense ones, convolutions, and tables of vectors.

rng -> initialiser -> W, b -> x @ W + b, conv2d(x, W, b), conv_transpose2d(x, W, b), or W[x]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.type import integer_dtypes

from synk import ops
from synk.extensions.initialisers import he_normal, standard_normal, zeros
from synk.extensions.layers.base import Layer, shared
from synk.extensions.layers.checks import IMAGES, checked, checked_last, count


class Dense(Layer):
    """Every output a weighted sum of all inputs along the last axis: ``x @ W + b``.

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
        """Return the outputs, shape (rows, ..., n_out).

        Parameters
        ----------
        x : tensor, shape (rows, ..., n_in)

        Raises
        ------
        TypeError, ValueError
            `x` has another dtype, one axis, or another number of units.
        """
        W = self.params["W"]
        x = checked_last(self, x, self.n_in, W.dtype)
        if x.type.ndim == 2:
            y = x @ W
        else:  # one product of matrices, whatever the axes
            leading = [x.shape[k] if n is None else n for k, n in enumerate(x.type.shape[:-1])]
            y = (x.reshape((-1, self.n_in)) @ W).reshape((*leading, self.n_out))
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
        self.n_in, self.n_out, groups, self.size = _channels(n_in, n_out, groups, size)
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
        super().__init__(_with_bias(W, self.n_out, bias, dtype))

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


class Embedding(Layer):
    """A vector for each of so many things, looked up by number: ``W[x]``.

    The gradient of ``W`` adds up what the rows of the batch give to the vectors that they looked up; all
    others have zeros, and the rules of `synk.extensions.updates` treat those as gradients, too.

    Parameters
    ----------
    n : int
        Things, numbered from 0.
    n_out : int
        Length of a vector.
    init : callable
        Of ``W``; by default normal numbers of variance 1.
    rng : numpy.random.Generator
        For the first values.
    dtype : {"float32", "float64"}

    Attributes
    ----------
    params
        ``W``, shape (n, n_out).

    Raises
    ------
    TypeError, ValueError
        A number is no positive integer, `rng` no generator, or the dtype another.

    See Also
    --------
    synk.extensions.layers.Dense : takes the vectors on.

    Examples
    --------
    >>> layer = layers.Embedding(10, 4, rng=np.random.default_rng(0))
    >>> words = pt.lmatrix("words")
    >>> synk.function([words], layer(words))([[3, 1, 3], [0, 9, 1]]).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        n: int,
        n_out: int,
        *,
        init: Callable[..., Any] = standard_normal,
        rng: Any,
        dtype: str = "float32",
    ) -> None:
        self.n, self.n_out = count("n", n), count("n_out", n_out)
        super().__init__({"W": shared(init, (self.n, self.n_out), rng, dtype)})

    def __call__(self, x: Any) -> Any:
        """Return the vectors, shape (rows, ..., n_out).

        Parameters
        ----------
        x : tensor of integers, shape (rows, ...)
            From 0 to n - 1, or from -n to count from the end.

        Raises
        ------
        TypeError
            `x` is no tensor of integers.
        IndexError
            When the function runs: a number is beyond the end.
        """
        x = pt.as_tensor_variable(x)
        if x.type.dtype not in integer_dtypes or x.type.ndim < 1:
            raise TypeError(
                f"{self!r} takes integers, shape (rows, ...), but its input is {x.type.dtype}, shape "
                f"{x.type.shape}; pass the numbers of things to look up"
            )
        return self.params["W"][x]

    def describe(self) -> str:
        """Tell how many vectors of which length."""
        return f"{self.n} x {self.n_out}"


def _channels(n_in: Any, n_out: Any, groups: Any, size: Any) -> tuple[int, int, int, tuple[int, int]]:
    """Return checked numbers of channels and groups, and height and width of filters."""
    n_in, n_out, groups = count("n_in", n_in), count("n_out", n_out), count("groups", groups)
    if n_in % groups or n_out % groups:
        raise ValueError(f"groups={groups} does not divide n_in={n_in} and n_out={n_out}; pass a divisor")
    height, width = size if isinstance(size, tuple) else (size, size)
    return n_in, n_out, groups, (count("size", height), count("size", width))


def _sizes(n_in: int, n_out: int, size: tuple[int, int]) -> str:
    return f"{n_in} -> {n_out}, {size[0]} x {size[1]}"


def _unusual(options: dict[str, Any]) -> str:
    """Tell the options that are not as usual."""
    usual = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
    return "".join(f", {key}={value}" for key, value in options.items() if value != usual[key])


def _with_bias(W: Any, n_out: int, bias: bool, dtype: str) -> dict[str, Any]:
    """Return weights and, where there are to be some, zero biases by their names."""
    if not bias:
        return {"W": W}
    return {"W": W, "b": shared(zeros, (n_out,), None, dtype)}
