"""Lengths and strides of one convolution, and rules for which of oneDNN's ways to compute it is fastest.

oneDNN always has axes in the order (image, channel, row, column) and (group, output, input, row, column), and
strides for where the elements lie; so images in both layouts have descriptors that differ only in strides.

This is arithmetic that needs no library. The rules depend on lengths alone, so the same convolution has the
same bits on every rank and in every run. They were found by timing every implementation of oneDNN 3.2 on
every convolution of ResNet-50 (batch 8, one thread, AVX-512):

- Without rules, oneDNN's first choice is the fastest or within a few per cent of it.
- A convolution with 1 x 1 windows is a product of matrices, and weights in C order are one of them. oneDNN's
  convolutions want weights in an order of their own; reordering 2 M of them takes half as long as the
  convolution, because their strides are powers of two. See `Shapes.is_product`.
- For images with fewer channels than a vector has lanes, the gradient for the image is twice as fast by the
  implementation that is called gemm: `Shapes.prefers_gemm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from synk.ops.kernels.window import Convolution, lengths

LANES = 16  # float32 elements in a vector register
MANY_WEIGHTS = 2**20  # with more, reordering them takes longer than a convolution saves over a product
FEW_WEIGHTS = 2**17  # with fewer, transposing them takes no time beside that of the product


class ArrayLayout(NamedTuple):
    """Lengths of axes, and strides in elements; with None for strides, oneDNN chooses them."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...] | None = None


def contiguous(*lengths: int) -> ArrayLayout:
    """Return the layout of a C-contiguous array."""
    strides = [1]
    for length in lengths[:0:-1]:
        strides.append(strides[-1] * length)
    return ArrayLayout(lengths, tuple(strides[::-1]))


@dataclass(frozen=True)
class Shapes:
    """Lengths of all axes of a convolution."""

    convolution: Convolution
    n: int  # images
    inputs: int  # channels
    outputs: int  # channels
    height: int
    width: int
    rows: int  # of the result
    columns: int
    kh: int
    kw: int

    @classmethod
    def of(cls, convolution: Convolution, image: tuple[int, ...], weights: tuple[int, ...]) -> Shapes:
        """Return the lengths for arrays of these shapes; ValueError if images and weights do not fit."""
        n, channels, height, width = lengths(convolution.layout, image)
        outputs, per_group, kh, kw = weights
        groups = convolution.groups
        if channels != per_group * groups or outputs % groups:
            raise ValueError(
                f"weights {weights} in {groups} group(s) do not go with {channels} channels of {image}"
            )
        rows, columns = convolution.window.output_lengths(height, width, kh, kw)
        return cls(convolution, n, channels, outputs, height, width, rows, columns, kh, kw)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of the array of images."""
        return self._ordered(self.inputs, self.height, self.width)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the array of results."""
        return self._ordered(self.outputs, self.rows, self.columns)

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """Shape of the array of weights."""
        return self.outputs, self.inputs // self.convolution.groups, self.kh, self.kw

    @property
    def is_empty(self) -> bool:
        """Return whether an array has no elements."""
        return 0 in (*self.image_shape, *self.result_shape, *self.weights_shape)

    @property
    def image(self) -> ArrayLayout:
        """Layout of the images."""
        return self._plain(self.inputs, self.height, self.width)

    @property
    def result(self) -> ArrayLayout:
        """Layout of the results."""
        return self._plain(self.outputs, self.rows, self.columns)

    @property
    def weights(self) -> ArrayLayout:
        """Layout of the weights in C order."""
        outputs, inputs, kh, kw = self.weights_shape
        groups = self.convolution.groups
        if groups == 1:
            return contiguous(outputs, inputs, kh, kw)
        return contiguous(groups, outputs // groups, inputs, kh, kw)

    @property
    def seen(self) -> ArrayLayout:
        """Layout of the pixels that windows of 1 x 1 read, in images with channels last."""
        high, wide = self.convolution.window.stride
        images, _, row, column = self.image.strides or ()
        return ArrayLayout(
            (self.n, self.inputs, self.rows, self.columns), (images, 1, row * high, column * wide)
        )

    @property
    def pixels(self) -> int:
        """Number of pixels of the result, over all images."""
        return self.n * self.rows * self.columns

    @property
    def is_strided(self) -> bool:
        """Return whether windows of 1 x 1 skip pixels."""
        return self.convolution.window.stride != (1, 1)

    def is_product(self, of_pixels: bool) -> bool:
        """Return whether the convolution, or one of its gradients, is computed as a product of matrices.

        ``of_pixels`` means the gradient for weights, which sums over pixels. It is always faster as a
        product, since oneDNN's convolution leaves its result in an order that takes long to undo. The
        convolution itself and the gradient for images are faster as products only with many weights.
        """
        window = self.convolution.window
        fits = (
            (self.kh, self.kw) == (1, 1)
            and window.padding == ((0, 0), (0, 0))
            and (self.convolution.groups, self.convolution.layout) == (1, "NHWC")
            and min(self.inputs, self.outputs) >= LANES
            # oneDNN refuses a descriptor of the pixels that windows see if it reaches beyond the image.
            and self.rows * window.stride[0] <= self.height
            and self.columns * window.stride[1] <= self.width
        )
        return fits and (of_pixels or self.inputs * self.outputs >= MANY_WEIGHTS)

    @property
    def is_transposed(self) -> bool:
        """Return whether the gradient for weights is faster as (inputs, outputs), which has longer rows."""
        return self.inputs <= self.outputs and self.inputs * self.outputs <= FEW_WEIGHTS

    @property
    def prefers_gemm(self) -> bool:
        """Return whether the gradient for images is faster by oneDNN's implementation called gemm."""
        return self.convolution.layout == "NHWC" and self.convolution.groups == 1 and self.inputs < LANES

    def _ordered(self, channels: int, height: int, width: int) -> tuple[int, ...]:
        if self.convolution.layout == "NCHW":
            return self.n, channels, height, width
        return self.n, height, width, channels

    def _plain(self, channels: int, height: int, width: int) -> ArrayLayout:
        named = (self.n, channels, height, width)
        if self.convolution.layout == "NCHW":
            return contiguous(*named)
        return ArrayLayout(named, (height * width * channels, 1, width * channels, channels))
