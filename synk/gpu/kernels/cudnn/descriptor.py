"""Describe one convolution, or a gradient of one, in the terms of cuDNN.

cuDNN always has axes in the order (image, channel, row, column), and strides for where the elements lie; so
images in both layouts differ only in strides. Weights are (output, input of the group, row, column) in C
order; that there are groups cuDNN infers from weights with fewer inputs than the image has channels.

    shapes of arrays -> Descriptor -> Tensor(uid, lengths, strides) of each array

This is arithmetic that needs no library.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from synk.ops.kernels.im2col import check_gradient
from synk.ops.kernels.window import Convolution, lengths, ordered

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"

# Identifiers (cuDNN's uid) of the arrays, the same in every graph.
IMAGE, WEIGHTS, RESULT, BIAS = 1, 2, 3, 4

# The arrays that each operation reads, in the order of an implementation's arguments.
INPUTS = {FORWARD: (IMAGE, WEIGHTS), INPUT_GRADIENT: (RESULT, WEIGHTS), WEIGHT_GRADIENT: (IMAGE, RESULT)}
TARGET = {FORWARD: RESULT, INPUT_GRADIENT: IMAGE, WEIGHT_GRADIENT: WEIGHTS}

Shape = tuple[int, ...]


class Tensor(NamedTuple):
    """An array as cuDNN sees it: identifier, lengths in cuDNN's order of axes, strides in elements."""

    uid: int
    lengths: Shape
    strides: Shape


@dataclass(frozen=True)
class Descriptor:
    """A convolution or one of its gradients, of arrays of certain shapes."""

    operation: str  # FORWARD, INPUT_GRADIENT or WEIGHT_GRADIENT
    convolution: Convolution
    image: Shape
    weights: Shape
    dtype: str  # of all arrays
    tf32: bool = False  # whether factors of float32 may be cut to 10 bits
    has_bias: bool = False  # whether a bias for each channel is added; forward only

    @cached_property
    def result(self) -> Shape:
        """Shape of the convolution's result; raises ValueError if the shapes do not fit."""
        return self.convolution.output_shape(self.image, self.weights)

    @property
    def is_empty(self) -> bool:
        """Return whether an array has no elements."""
        return 0 in (*self.image, *self.weights, *self.result)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Identifiers of the arrays that are read, in the order of an implementation's arguments."""
        return INPUTS[self.operation] + (BIAS,) * self.has_bias

    @property
    def target(self) -> int:
        """Identifier of the array that is written."""
        return TARGET[self.operation]

    def shape(self, uid: int) -> Shape:
        """Return the shape in memory of the array with this identifier."""
        return {IMAGE: self.image, WEIGHTS: self.weights, RESULT: self.result, BIAS: self.weights[:1]}[uid]

    def tensor(self, uid: int) -> Tensor:
        """Return lengths and strides, in cuDNN's order of axes, of the array with this identifier."""
        if uid == BIAS:
            outputs = self.weights[0]
            return Tensor(uid, (1, outputs, 1, 1), (outputs, 1, outputs, outputs))
        layout = "NCHW" if uid == WEIGHTS else self.convolution.layout
        _, channels, height, width = named = lengths(layout, self.shape(uid))
        if layout == "NCHW":
            return Tensor(uid, named, (channels * height * width, height * width, width, 1))
        return Tensor(uid, named, (height * width * channels, 1, width * channels, channels))


def forward(convolution: Convolution, x: Shape, w: Shape, **rest) -> Descriptor:
    """Return the descriptor of a convolution; ValueError if shapes do not go together."""
    descriptor = Descriptor(FORWARD, convolution, x, w, **rest)
    convolution.output_shape(x, w)
    return descriptor


def input_gradient(
    convolution: Convolution, gy: Shape, w: Shape, height: int, width: int, **rest
) -> Descriptor:
    """Return the descriptor of the gradient for images; ValueError if shapes do not go together."""
    check_gradient(convolution, gy, w, height, width)
    image = ordered(convolution.layout, gy[0], w[1] * convolution.groups, height, width)
    return Descriptor(INPUT_GRADIENT, convolution, image, w, **rest)


def weight_gradient(convolution: Convolution, x: Shape, gy: Shape, kh: int, kw: int, **rest) -> Descriptor:
    """Return the descriptor of the gradient for weights; ValueError if shapes do not go together."""
    _, channels, height, width = lengths(convolution.layout, x)
    outputs = lengths(convolution.layout, gy)[1]
    convolution.check_channels(channels, None, outputs)
    weights = outputs, channels // convolution.groups, kh, kw
    check_gradient(convolution, gy, weights, height, width)
    if gy[0] != x[0]:
        raise ValueError(f"gy has shape {gy}, and x {x}: the convolution gives as many images as it takes")
    return Descriptor(WEIGHT_GRADIENT, convolution, x, weights, **rest)
