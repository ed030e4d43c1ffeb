"""Images as matrices whose rows are pixels, or all that a window sees of them.

    Grid: where the windows are -> pieces -> Piece: some images, or some rows of one
    image, Piece -> columns -> (groups, windows, places and channels)
                 -> matrix  -> (groups, pixels, channels)

Images come as views with their channels first. Their layout decides the order in memory of what is made here:
with channels last, a row of the matrix is copied in runs of as many elements as a row of a window has; with
channels first the matrix lies transposed, and is copied in runs of as many as a row of the image has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from synk.ops.kernels.window import Pair, Window, ordered


class Piece(NamedTuple):
    """Some images, and some rows of their windows."""

    images: slice
    rows: slice


@dataclass(frozen=True)
class Grid:
    """Windows on a plane; all lengths are down and across."""

    outputs: Pair  # windows
    places: Pair  # of a window
    start: Pair  # pixel of the first place of the first window; less than 0 in the padding
    stride: Pair  # pixels from one window to the next
    dilation: Pair  # pixels from one place to the next

    @classmethod
    def of(cls, window: Window, outputs: Pair, places: Pair) -> Grid:
        """Return the windows of a convolution."""
        (top, _), (left, _) = window.padding
        return cls(outputs, places, (-top, -left), window.stride, window.dilation)

    def is_every_pixel(self, size: Pair) -> bool:
        """Tell whether every window is one pixel of an image of this size, and every pixel one window."""
        simple = self.places == self.stride == (1, 1) and self.start == (0, 0)
        return simple and self.outputs == size

    def span(self, direction: int, windows: slice) -> Pair:
        """Return the pixels, start and stop, between the ends of some windows."""
        start = self.start[direction] + windows.start * self.stride[direction]
        reach = (self.places[direction] - 1) * self.dilation[direction]
        return start, start + (windows.stop - windows.start - 1) * self.stride[direction] + reach + 1


def pieces(
    n_images: int,
    grid: Grid,
    place_bytes: int,
    budget: int,
    *,
    whole: bool = False,
    windows: int | None = None,
) -> Iterator[Piece]:
    """Cut windows into pieces whose columns take about ``budget`` bytes; a row of windows may take more.

    One place of a window takes ``place_bytes``: all channels. With ``whole`` images are not cut; a piece of
    several images stops at ``windows``, if that is given.
    """
    height, width = grid.outputs
    row_bytes = max(1, width * place_bytes * grid.places[0] * grid.places[1])
    rows = height if whole else max(1, min(height, budget // row_bytes))
    images = max(1, budget // max(1, row_bytes * height)) if rows == height else 1
    if windows is not None:
        images = max(1, min(images, windows // (height * width)))
    for image in range(0, n_images, images):
        for row in range(0, height, rows):
            yield Piece(slice(image, min(image + images, n_images)), slice(row, min(row + rows, height)))


def columns(xp: ModuleType, image: Any, grid: Grid, groups: int, layout: str, piece: Piece) -> Any:
    """Return the pixels that the windows of a piece see, (groups, windows, places and channels of the group).

    It is a view if every window is one pixel. A row has the order (channel, place) if channels come first,
    else (place, channel), which is that of the image in memory.
    """
    if grid.is_every_pixel(image.shape[2:]):
        return matrix(part_of(image, piece), groups, layout)
    part = split_groups(seen(xp, image[piece.images], grid, layout, piece.rows), groups)
    n_images, _, channels, *_ = part.shape
    counts = piece.rows.stop - piece.rows.start, grid.outputs[1]
    *steps, down, across = part.strides
    windows = xp.lib.stride_tricks.as_strided(
        part,
        (*part.shape[:3], *grid.places, *counts),
        (
            *steps,
            *(down * grid.dilation[0], across * grid.dilation[1]),
            *(down * grid.stride[0], across * grid.stride[1]),
        ),
    )
    n_windows, n_seen = n_images * counts[0] * counts[1], channels * grid.places[0] * grid.places[1]
    if layout == "NCHW":  # (group, channel, place, place, image, row, column)
        copied = xp.ascontiguousarray(windows.transpose(1, 2, 3, 4, 0, 5, 6))
        return copied.reshape(groups, n_seen, n_windows).swapaxes(1, 2)
    # (group, image, row, column, place, place, channel)
    return xp.ascontiguousarray(windows.transpose(1, 0, 5, 6, 3, 4, 2)).reshape(groups, n_windows, n_seen)


def seen(xp: ModuleType, image: Any, grid: Grid, layout: str, rows: slice) -> Any:
    """Return all pixels between the ends of the windows in ``rows``, with zeros where there is no image."""
    *lead, height, width = image.shape
    spans = grid.span(0, rows), grid.span(1, slice(0, grid.outputs[1]))
    inner = [slice(max(0, a), min(n, b)) for (a, b), n in zip(spans, (height, width), strict=True)]
    if all((pixels.start, pixels.stop) == span for pixels, span in zip(inner, spans, strict=True)):
        return image[:, :, inner[0], inner[1]]
    around = channels_first(xp.zeros(ordered(layout, *lead, *(b - a for a, b in spans)), image.dtype), layout)
    if all(pixels.start < pixels.stop for pixels in inner):
        to = [slice(p.start - a, p.stop - a) for p, (a, _) in zip(inner, spans, strict=True)]
        around[:, :, to[0], to[1]] = image[:, :, inner[0], inner[1]]
    return around


def channels_first(image: Any, layout: str) -> Any:
    """Return a view with the axes (image, channel, row, column)."""
    return image if layout == "NCHW" else image.transpose(0, 3, 1, 2)


def part_of(image: Any, piece: Piece) -> Any:
    """Return the pixels of a piece, one for each window."""
    return image[piece.images, :, piece.rows]


def split_groups(image: Any, groups: int) -> Any:
    """Return a view with the axes (image, group, channel of the group, row, column)."""
    if groups == 1:
        return image[:, None]
    n_images, channels, height, width = image.shape
    return image.reshape(n_images, groups, channels // groups, height, width)


def matrix(image: Any, groups: int, layout: str) -> Any:
    """Return an image as (groups, pixels, channels of the group): a view if `lies_evenly`."""
    n_images, channels, height, width = image.shape
    if layout == "NHWC":
        pixels = image.transpose(0, 2, 3, 1).reshape(n_images * height * width, groups, channels // groups)
        return pixels.swapaxes(0, 1)
    if n_images == 1:
        return image.reshape(groups, channels // groups, height * width).swapaxes(1, 2)
    split = image.reshape(n_images, groups, channels // groups, height * width).transpose(1, 2, 0, 3)
    return split.reshape(groups, channels // groups, n_images * height * width).swapaxes(1, 2)


def lies_evenly(part: Any, layout: str) -> bool:
    """Tell whether the pixels of a contiguous image's piece lie at even distances in memory."""
    return layout == "NHWC" or len(part) == 1


def write_matrix(result: Any, target: Any) -> None:
    """Write (groups, pixels, channels of the group) to images in NCHW."""
    n_images, channels, height, width = target.shape
    target[...] = result.swapaxes(1, 2).reshape(channels, n_images, height, width).swapaxes(0, 1)
