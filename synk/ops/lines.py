"""Convolution and pooling of lines, which are images of one row: by the same Ops and kernels.

x, (lines, channels, length) -> (lines, channels, 1, length) -> the function of images -> one row -> lines
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

from pytensor.graph.basic import Variable

from synk.ops.checks import float_tensor, named
from synk.ops.conv_transpose import conv_transpose2d
from synk.ops.convolve import conv2d
from synk.ops.image import is_int
from synk.ops.pool import avg_pool2d, max_pool2d


@named
def conv1d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Variable:
    """Convolve lines with weights, channel by channel, and sum: `conv2d` in one direction.

    ``y[n, o, i] = bias[o] + sum(w[o, c, p] * x[n, c, i * stride + p * dilation - padding])``

    Parameters
    ----------
    x : tensor of float32 or float64, shape (lines, channels, length)
    w : tensor of x's dtype, shape (output channels, channels / groups, k)
    bias : tensor of x's dtype, shape (output channels,), optional
    stride : int
        Elements from one window to the next.
    padding : int, (before, after), "valid" or "same"
        Zeros around the line, as in `conv2d`.
    dilation : int
        Elements from one place of the window to the next.
    groups : int
        Parts of the channels that are convolved apart; must divide both numbers of channels.

    Returns
    -------
    tensor of x's dtype, shape (lines, output channels, length')
        Where ``length' = (length + padding - dilation * (k - 1) - 1) // stride + 1``.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these; a number of channels or a window does not fit.

    Examples
    --------
    >>> x = pt.tensor3("x")
    >>> f = synk.function([x], ops.conv1d(x, [[[1.0, -1.0]]]))
    >>> f([[[1.0, 4.0, 9.0, 16.0]]]).tolist()
    [[[-3.0, -5.0, -7.0]]]
    """
    steps = {"stride": (1, checked_int("stride", stride)), "dilation": (1, checked_int("dilation", dilation))}
    around = padding if isinstance(padding, str) else along(padding)
    return in_one_row(conv2d, x, row_of("w", w), bias, padding=around, groups=groups, **steps)


@named
def conv_transpose1d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int = 1,
    padding: Any = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Variable:
    """Spread each element of lines over a window of weights, and sum: `conv_transpose2d` in one direction.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (lines, channels, length)
    w : tensor of x's dtype, shape (channels, output channels / groups, k)
    bias : tensor of x's dtype, shape (output channels,), optional
    stride : int
        Elements of the result from one window to the next.
    padding : int or (before, after)
        Elements taken away around the result.
    output_padding : int
        Elements added at the end of the result, less than ``stride``.
    dilation : int
        Elements of the result from one place of the window to the next.
    groups : int
        Parts of the channels that are convolved apart; must divide both numbers of channels.

    Returns
    -------
    tensor of x's dtype, shape (lines, output channels, length')
        Where ``length' = (length - 1) * stride - padding + dilation * (k - 1) + output_padding + 1``, and
        ``padding`` is that of both ends together.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these; a number of channels does not fit, or no elements would be left.

    Examples
    --------
    >>> x = pt.tensor3("x")
    >>> f = synk.function([x], ops.conv_transpose1d(x, [[[1.0, 2.0]]], stride=2))
    >>> f([[[1.0, 10.0]]]).tolist()
    [[[1.0, 2.0, 10.0, 20.0]]]
    """
    geometry = {
        "stride": (1, checked_int("stride", stride)),
        "dilation": (1, checked_int("dilation", dilation)),
        "output_padding": (0, checked_int("output_padding", output_padding, least=0)),
    }
    around = along(padding)
    return in_one_row(conv_transpose2d, x, row_of("w", w), bias, padding=around, groups=groups, **geometry)


@named
def max_pool1d(x: Any, size: int, *, stride: int | None = None, padding: Any = 0) -> Variable:
    """Return the maximum of each window of lines: `max_pool2d` in one direction.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (lines, channels, length)
    size : int
        Elements of a window.
    stride : int, optional
        Elements from one window to the next; default ``size``.
    padding : int or (before, after)
        Elements around the line that are less than any number; fewer than ``size``.

    Returns
    -------
    tensor of x's dtype, shape (lines, channels, length')
        Where ``length' = (length + padding - size) // stride + 1``.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or no window fits.

    Examples
    --------
    >>> x = pt.tensor3("x")
    >>> f = synk.function([x], ops.max_pool1d(x, 2))
    >>> f([[[1.0, 5.0, 3.0, 2.0]]]).tolist()
    [[[5.0, 3.0]]]
    """
    return in_one_row(max_pool2d, x, **pooled(size, stride, padding))


@named
def avg_pool1d(
    x: Any, size: int, *, stride: int | None = None, padding: Any = 0, count_padding: bool = True
) -> Variable:
    """Return the mean of each window of lines: `avg_pool2d` in one direction.

    Parameters
    ----------
    x, size, stride, padding
        As in `max_pool1d`, but for padding with zeros.
    count_padding : bool
        Divide by the elements of a window; otherwise, by those of them that are in the line.

    Returns
    -------
    tensor of x's dtype, shape (lines, channels, length')

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or no window fits.

    Examples
    --------
    >>> x = pt.tensor3("x")
    >>> f = synk.function([x], ops.avg_pool1d(x, 2))
    >>> f([[[1.0, 5.0, 3.0, 2.0]]]).tolist()
    [[[3.0, 2.5]]]
    """
    return in_one_row(avg_pool2d, x, **pooled(size, stride, padding), count_padding=count_padding)


def in_one_row(function: Callable[..., Any], x: Any, *arguments: Any, **keywords: Any) -> Variable:
    """Return the result of a function of images for lines, as lines; errors bear the caller's name alone."""
    return unwrap(function)(row_of("x", x), *arguments, **keywords).dimshuffle(0, 1, 3)


def row_of(name: str, value: Any) -> Any:
    """Return an array of three axes as one with a single row."""
    return float_tensor(name, value, (3,)).dimshuffle(0, 1, "x", 2)


def checked_int(name: str, value: Any, least: int = 1) -> int:
    """Return an int; TypeError for anything else, ValueError if it is less than ``least``."""
    if not is_int(value):
        raise TypeError(f"{name}={value!r} must be an int")
    if value < least:
        raise ValueError(f"{name}={value} must be {least} or more")
    return int(value)


def along(padding: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the padding of a line, an int or (before, after), as that of an image of one row."""
    before, after = padding if isinstance(padding, tuple | list) and len(padding) == 2 else (padding, padding)
    if not (is_int(before) and is_int(after)):
        raise TypeError(f"padding={padding!r} must be an int or a pair of ints (before, after)")
    return (0, 0), (int(before), int(after))


def pooled(size: Any, stride: Any, padding: Any) -> dict[str, Any]:
    """Return the arguments of a function that pools images, for lines."""
    size = checked_int("size", size)
    steps = size if stride is None else checked_int("stride", stride)
    return {"size": (1, size), "stride": (1, steps), "padding": along(padding)}
