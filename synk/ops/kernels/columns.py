"""Copy images into matrices: a row is one pixel, or all pixels that one window covers.

    Grid: where the windows are -> pieces -> Piece: some images, or some rows of one
    image, Piece -> columns -> (groups, windows, places and channels)
                 -> matrix  -> (groups, pixels, channels)

A window has places, each of which falls on one pixel. Images come as views with their channels first; their
layout decides the order of the matrix in memory. With channels last, the matrix is in C order, copied in runs
as long as a row of a window. With channels first, its transpose is, copied in runs as long as an image's row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from synk.ops.kernels.window import Pair, Window, ordered


class Piece(NamedTuple):
    """A part of the work: some images, and some rows of windows in each."""

    images: slice
    rows: slice


@dataclass(frozen=True)
class Grid:
    """The position of all windows in an image; each pair is (in height, in width)."""

    outputs: Pair  # number of windows
    places: Pair  # number of places of a window
    start: Pair  # pixel of the first place of the first window; less than 0 in the padding
    stride: Pair  # pixels from one window to the next
    dilation: Pair  # pixels from one place to the next

    @classmethod
    def of(cls, window: Window, outputs: Pair, places: Pair) -> Grid:
        """Return the grid of a convolution with so many outputs and places."""
        (top, _), (left, _) = window.padding
        return cls(outputs, places, (-top, -left), window.stride, window.dilation)

    def is_every_pixel(self, size: Pair) -> bool:
        """Return whether the windows are the pixels of an image of this size, one by one."""
        simple = self.places == self.stride == (1, 1) and self.start == (0, 0)
        return simple and self.outputs == size

    def span(self, direction: int, windows: slice) -> Pair:
        """Return the first pixel that some windows cover, and the one after the last, in one direction."""
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
    """Yield pieces whose columns take about ``budget`` bytes, though at least one row of windows each.

    One place of a window takes ``place_bytes``, with all channels. With ``whole``, no image is split. A piece
    of several images has at most ``windows`` windows, if that is given.
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
    """Return the pixels that the windows cover, (groups, windows, places and channels of the group).

    The result is a view if every window is one pixel. A row is ordered (channel, place) if channels come
    first in the layout, else (place, channel): as the image in memory.
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
    """Return the part of the images that the windows in ``rows`` cover, with zeros for the padding."""
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
    """Return the pixels of a piece, of an array that has one pixel for each window."""
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
    """Return whether consecutive pixels of a piece are always equally far apart in memory."""
    return layout == "NHWC" or len(part) == 1


def write_matrix(result: Any, target: Any) -> None:
    """Copy ``result``, (groups, pixels, channels of the group), into ``target``, images in NCHW."""
    n_images, channels, height, width = target.shape
    target[...] = result.swapaxes(1, 2).reshape(channels, n_images, height, width).swapaxes(0, 1)
