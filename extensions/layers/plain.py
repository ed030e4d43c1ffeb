"""Layers without parameters: rectifiers, pooling, other sizes of images, flattening.

x -> one operation of `synk.ops` -> y
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from synk import ops
from synk.extensions.layers.base import Layer
from synk.extensions.layers.checks import IMAGES, checked


class ReLU(Layer):
    """The positive part of every value: ``max(0, x)``.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.ReLU()
    >>> x = pt.fmatrix("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3), "float32")).shape
    (2, 3)
    """

    def __call__(self, x: Any) -> Any:
        """Return `synk.ops.relu` of `x`."""
        return ops.relu(x)


class _WithOptions(Layer):
    """An operation on images with its options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def describe(self) -> str:
        """Tell the options that are given."""
        return ", ".join(f"{key}={value}" for key, value in self.options.items() if value is not None)


class MaxPool(_WithOptions):
    """The largest value in every window: `synk.ops.max_pool2d`.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the window.
    stride : int or (int, int), optional
        From window to window; by default its size.
    padding
        As of `synk.ops.max_pool2d`.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.MaxPool(2)
    >>> x = pt.ftensor4("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3, 8, 8), "float32")).shape
    (2, 3, 4, 4)
    """

    def __init__(self, size: Any, stride: Any = None, *, padding: Any = 0) -> None:
        super().__init__(size=size, stride=stride, padding=padding)

    def __call__(self, x: Any) -> Any:
        """Return the largest values, shape (images, channels, windows down, windows across).

        Parameters
        ----------
        x : 4-D tensor, shape (images, channels, height, width)

        Raises
        ------
        TypeError, ValueError
            `x` has another number of axes, or as of `synk.ops.max_pool2d`.
        """
        return ops.max_pool2d(checked(self, x, [IMAGES]), **self.options)


class AvgPool(_WithOptions):
    """The mean of every window: `synk.ops.avg_pool2d`.

    Parameters
    ----------
    size, stride, padding
        As of `MaxPool`.
    count_padding : bool
        Whether padding counts as zeros; otherwise means are over the pixels of the image alone.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.AvgPool(2)
    >>> x = pt.ftensor4("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3, 8, 8), "float32")).shape
    (2, 3, 4, 4)
    """

    def __init__(
        self, size: Any, stride: Any = None, *, padding: Any = 0, count_padding: bool = True
    ) -> None:
        super().__init__(size=size, stride=stride, padding=padding, count_padding=count_padding)

    def __call__(self, x: Any) -> Any:
        """Return the means, shape (images, channels, windows down, windows across).

        Parameters
        ----------
        x : 4-D tensor, shape (images, channels, height, width)

        Raises
        ------
        TypeError, ValueError
            `x` has another number of axes, or as of `synk.ops.avg_pool2d`.
        """
        return ops.avg_pool2d(checked(self, x, [IMAGES]), **self.options)


class Upsample(_WithOptions):
    """Images in another size, mostly a larger one: `synk.ops.upsample2d`.

    Parameters
    ----------
    scale : number or (number, number), optional
        How many times as high and wide.
    size : int or (int, int), optional
        Height and width of the result, instead of `scale`.
    mode : {"nearest", "bilinear"}
    align_corners : bool
        As of `synk.ops.upsample2d`.

    See Also
    --------
    synk.extensions.layers.ConvTranspose : makes images larger by weights.

    Examples
    --------
    >>> layer = layers.Upsample(2, mode="bilinear")
    >>> x = pt.ftensor4("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3, 8, 8), "float32")).shape
    (2, 3, 16, 16)
    """

    def __init__(
        self,
        scale: Any = None,
        *,
        size: Any = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        super().__init__(scale=scale, size=size, mode=mode, align_corners=align_corners)

    def __call__(self, x: Any) -> Any:
        """Return the images in their new size, shape (images, channels, height, width).

        Parameters
        ----------
        x : 4-D tensor, shape (images, channels, height, width)

        Raises
        ------
        TypeError, ValueError
            `x` has another number of axes, or as of `synk.ops.upsample2d`.
        """
        return ops.upsample2d(checked(self, x, [IMAGES]), **self.options)


class GlobalAvgPool(Layer):
    """The mean of every channel of every image: `synk.ops.global_avg_pool2d`.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.GlobalAvgPool()
    >>> x = pt.ftensor4("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3, 8, 8), "float32")).shape
    (2, 3)
    """

    def __call__(self, x: Any) -> Any:
        """Return the means, shape (images, channels).

        Parameters
        ----------
        x : 4-D tensor, shape (images, channels, height, width)

        Raises
        ------
        ValueError
            `x` has another number of axes.
        """
        return ops.global_avg_pool2d(checked(self, x, [IMAGES]))


class Flatten(Layer):
    """Every row as a vector: all axes but the first joined, in C order.

    See Also
    --------
    synk.extensions.layers.Sequential : puts layers one after another.

    Examples
    --------
    >>> layer = layers.Flatten()
    >>> x = pt.ftensor4("x")
    >>> f = synk.function([x], layer(x))
    >>> f(np.ones((2, 3, 8, 8), "float32")).shape
    (2, 192)
    """

    def __call__(self, x: Any) -> Any:
        """Return a matrix, shape (rows, values of a row).

        Parameters
        ----------
        x : tensor of at least one axis
        """
        return pt.flatten(x, 2)
