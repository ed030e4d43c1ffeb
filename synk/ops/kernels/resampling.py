"""Compute from which pixels of an image those of a larger or smaller image come.

Pure arithmetic on lengths in pixels. The result's rows and columns are treated apart, and each of them lies
between two of the image, or on one:

    pixel i of the result = (1 - weight[i]) * pixel first[i] + weight[i] * pixel second[i]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from synk.ops.kernels.window import DIRECTIONS, Pair, check_layout, lengths, ordered

MODES = ("nearest", "bilinear")


class Taps(NamedTuple):
    """The pixels that each pixel of the result comes from, in one direction; arrays of one length."""

    first: Any  # int64
    second: Any  # int64; the same where no second pixel counts
    weight: Any  # float64, of the second


@dataclass(frozen=True)
class Resampling:
    """The geometry of a change of size: either a size or a scale, in height and width.

    Raises ValueError for both or none of them, one that is not positive, an unknown mode or layout, or
    corners for a mode that has none.
    """

    size: Pair | None  # pixels of the result
    scale: tuple[float, float] | None  # pixels of the result for one of the image
    mode: str = "nearest"
    align_corners: bool = False  # whether the corners of both images are the centres of their corner pixels
    layout: str = "NCHW"  # order of the axes of images: "NCHW" or "NHWC"

    def __post_init__(self) -> None:
        check_layout(self.layout)
        if (self.size is None) == (self.scale is None):
            raise ValueError(f"give a scale or a size, one of them: scale={self.scale}, size={self.size}")
        for name in ("size", "scale"):
            pair = getattr(self, name)
            if pair is not None and not all(0 < value < math.inf for value in pair):
                raise ValueError(f"{name}={pair} must be positive in height and width")
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r} is unknown; choose one of {', '.join(MODES)}")
        if self.align_corners and self.mode == "nearest":
            raise ValueError('align_corners=True has no meaning for mode="nearest"; use mode="bilinear"')

    def side(self, direction: int, length: int) -> int:
        """Return the pixels of the result in one direction; ValueError if it or the image has none."""
        made = self.size[direction] if self.size else math.floor(length * self.scale[direction])  # type: ignore[index]
        if length < 1 or made < 1:
            raise ValueError(
                f"upsample2d: a {DIRECTIONS[direction]} of {length} pixels with scale={self.scale}, "
                f"size={self.size} gives {made} pixels; give images with pixels, and a larger scale or size"
            )
        return int(made)

    def output_shape(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result; ValueError if it would have no pixels."""
        n_images, channels, *sides = lengths(self.layout, image)
        return ordered(self.layout, n_images, channels, *(self.side(k, n) for k, n in enumerate(sides)))

    def image_shape(self, result: tuple[int, ...], height: int, width: int) -> tuple[int, ...]:
        """Return the shape of the images; ValueError if ``result`` is not the shape they are brought to."""
        n_images, channels, *_ = lengths(self.layout, result)
        image = ordered(self.layout, n_images, channels, height, width)
        expected = self.output_shape(image)
        if tuple(result) != expected:
            raise ValueError(f"gy has shape {tuple(result)}; resampling gives {expected}")
        return image

    def taps(self, xp: ModuleType, direction: int, length: int) -> Taps:
        """Return where the pixels of the result come from, as arrays of module ``xp``."""
        outputs = self.side(direction, length)
        step = self._step(direction, length, outputs)
        places = xp.arange(outputs)
        if self.mode == "nearest":
            # In float32, as torch computes it whatever the dtype: a place on a border falls to the same side.
            found = xp.floor(places.astype("float32") * np.float32(step))
            first = xp.minimum(found.astype("int64"), length - 1)
            return Taps(first, first, xp.zeros(outputs, "float64"))
        at = places * step if self.align_corners else xp.maximum((places + 0.5) * step - 0.5, 0)
        first = xp.minimum(xp.floor(at).astype("int64"), length - 1)
        return Taps(first, xp.minimum(first + 1, length - 1), xp.minimum(at - first, 1.0))

    def _step(self, direction: int, length: int, outputs: int) -> float:
        """Return the pixels of the image from one pixel of the result to the next."""
        if self.align_corners:
            return (length - 1) / (outputs - 1) if outputs > 1 else 0.0
        # As torch does: what keeps its length keeps its pixels, whatever the fraction of a scale is.
        if outputs == length or (self.mode == "nearest" and outputs == 2 * length):
            return length / outputs
        return 1 / self.scale[direction] if self.scale else length / outputs
