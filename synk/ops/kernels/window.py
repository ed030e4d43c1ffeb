"""Compute where the windows of a convolution or of pooling lie in an image.

Pure arithmetic on lengths in pixels; no array is touched. A window of k places starts every ``stride`` pixels
of the padded image, and its places are ``dilation`` pixels apart:

    output o, place p -> pixel o * stride + p * dilation - padding before, if that is in the image
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# By layout of a batch of images: the axes of channels, rows and columns; axis 0 is the image.
AXES = {"NCHW": (1, 2, 3), "NHWC": (3, 1, 2)}
LAYOUTS = tuple(AXES)

DIRECTIONS = ("height", "width")

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Windows over height and width, in this order.

    Raises ValueError if a size, stride or dilation is less than one, or a padding negative.
    """

    size: Pair | None = None  # places; None where the shape of the weights determines them
    stride: Pair = (1, 1)  # pixels from one window to the next
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))  # pixels added (top, bottom), (left, right)
    dilation: Pair = (1, 1)  # pixels from one place to the next

    def __post_init__(self) -> None:
        for name in ("size", "stride", "dilation"):
            pair = getattr(self, name)
            if pair is not None and min(pair) < 1:
                raise ValueError(f"{name}={pair} must be 1 or more in height and width")
        if min(map(min, self.padding)) < 0:
            raise ValueError(f"padding={self.padding} must not be negative; crop the image instead")

    def count(self, direction: int, length: Any, places: Any) -> Any:
        """Return how many windows of ``places`` fit in ``length`` pixels, one or more; both may be symbolic.

        ``direction`` is 0 for height, 1 for width.
        """
        room = length + sum(self.padding[direction]) - self.dilation[direction] * (places - 1) - 1
        return room // self.stride[direction] + 1

    def output_length(self, direction: int, length: int, places: int) -> int:
        """Return how many windows fit in one direction, as `count` does; ValueError if none does."""
        extent = self.dilation[direction] * (places - 1) + 1
        padded = length + sum(self.padding[direction])
        if places < 1 or extent > padded:
            raise ValueError(
                f"a window of {places} places, {extent} pixels, does not fit in a {DIRECTIONS[direction]} of "
                f"{length} pixels with padding {self.padding[direction]}; pad more or take a smaller window"
            )
        return self.count(direction, length, places)

    def covered(self, direction: int, outputs: Any, places: Any) -> Any:
        """Return the fewest pixels in which ``outputs`` windows of ``places`` fit; both may be symbolic."""
        reach = self.dilation[direction] * (places - 1) + 1
        return (outputs - 1) * self.stride[direction] + reach - sum(self.padding[direction])

    def output_lengths(self, height: int, width: int, kh: int, kw: int) -> Pair:
        """Return how many windows of kh x kw places fit down and across an image; ValueError if none does."""
        return self.output_length(0, height, kh), self.output_length(1, width, kw)

    def inside(self, direction: int, place: int, length: int, outputs: int) -> tuple[slice, slice]:
        """Return slices of the outputs whose window has ``place`` inside the image, and of the pixels there.

        ``direction`` is 0 for height, 1 for width; the image has ``length`` pixels, and there are ``outputs``
        windows. The two slices have equal length, maybe zero.
        """
        stride = self.stride[direction]
        offset = place * self.dilation[direction] - self.padding[direction][0]
        first = max(0, -(offset // stride))  # -(a // b) is -a / b, rounded up
        stop = min(outputs, (length - 1 - offset) // stride + 1)
        if stop <= first:
            return slice(0, 0), slice(0, 0)
        start = first * stride + offset
        return slice(first, stop), slice(start, start + (stop - first - 1) * stride + 1, stride)


@dataclass(frozen=True)
class Convolution:
    """The geometry of a convolution.

    Raises TypeError for a number of groups that is no int, ValueError for less than one or an unknown layout.
    Weights are always (output channels, input channels / groups, kh, kw).
    """

    window: Window  # its size is None
    groups: int = 1  # parts of the channels that are convolved apart
    layout: str = "NCHW"  # order of the axes of images: "NCHW" or "NHWC"

    def __post_init__(self) -> None:
        check_layout(self.layout)
        if not hasattr(self.groups, "__index__"):
            raise TypeError(f"groups={self.groups!r} must be an int")
        if self.groups < 1:
            raise ValueError(f"groups={self.groups} must be 1 or more")

    def check_channels(self, of_image: int | None, of_weights: int | None, outputs: int | None) -> None:
        """Raise ValueError if these numbers of channels do not go together; None is unknown."""
        for name, channels in (("input", of_image), ("output", outputs)):
            if channels is not None and channels % self.groups:
                raise ValueError(
                    f"groups={self.groups} does not divide {channels} {name} channels; choose a divisor"
                )
        if None not in (of_image, of_weights) and of_image != of_weights * self.groups:  # type: ignore[operator]
            raise ValueError(
                f"the image has {of_image} channels; weights for {of_weights} input channels in "
                f"{self.groups} group(s) need {of_weights * self.groups}"  # type: ignore[operator]
            )

    def output_shape(self, image: tuple[int, ...], weights: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result; ValueError if weights or window do not fit the image."""
        n_images, channels, height, width = lengths(self.layout, image)
        outputs, of_weights, kh, kw = weights
        self.check_channels(channels, of_weights, outputs)
        return ordered(self.layout, n_images, outputs, *self.window.output_lengths(height, width, kh, kw))


@dataclass(frozen=True)
class Pooling:
    """The geometry of pooling.

    Raises ValueError unless the window has a size, a dilation of 1, and less padding than its size: then no
    window lies wholly in the padding.
    """

    window: Window
    layout: str = "NCHW"  # order of the axes of images: "NCHW" or "NHWC"

    def __post_init__(self) -> None:
        check_layout(self.layout)
        window = self.window
        if window.size is None or window.dilation != (1, 1):
            raise ValueError(f"pooling needs a size, and a dilation of 1: {window}")
        if any(max(padding) >= size for padding, size in zip(window.padding, window.size, strict=True)):
            raise ValueError(
                f"padding={window.padding} must be less than size={window.size}; pad the image instead"
            )

    @property
    def size(self) -> Pair:
        """Places of the window: height, width."""
        assert self.window.size is not None
        return self.window.size

    def output_shape(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result; ValueError if no window fits, or images have no pixels."""
        n_images, channels, height, width = lengths(self.layout, image)
        if height == 0 or width == 0:
            raise ValueError(f"images of {height} x {width} pixels have nothing to pool")
        return ordered(
            self.layout, n_images, channels, *self.window.output_lengths(height, width, *self.size)
        )


def lengths(layout: str, shape: tuple[Any, ...]) -> tuple[Any, Any, Any, Any]:
    """Return the lengths (images, channels, height, width) from a shape in the order of ``layout``."""
    channels, height, width = AXES[layout]
    return shape[0], shape[channels], shape[height], shape[width]


def ordered(layout: str, images: Any, channels: Any, height: Any, width: Any) -> tuple[Any, ...]:
    """Return the shape that has these lengths in the order of ``layout``."""
    return (images, channels, height, width) if layout == "NCHW" else (images, height, width, channels)


def image_shape(pooling: Pooling, height: int, width: int, gy: Any, index: Any = None) -> tuple[int, ...]:
    """Return the shape of the images that were pooled; ValueError if ``gy`` or ``index`` does not fit."""
    images, channels, *_ = lengths(pooling.layout, gy.shape)
    shape = ordered(pooling.layout, images, channels, height, width)
    expected = pooling.output_shape(shape)
    for name, array in (("gy", gy), ("index", index)):
        if array is not None and tuple(array.shape) != expected:
            raise ValueError(f"{name} has shape {tuple(array.shape)}; pooling gives {expected}")
    return shape


def check_layout(layout: str) -> None:
    """Raise ValueError if there is no such layout."""
    if layout not in AXES:
        raise ValueError(f"layout={layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
