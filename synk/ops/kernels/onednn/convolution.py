"""The provider that computes convolutions, and their gradients, by steps of oneDNN's primitives.

    OneDnn(fallback).forward(convolution, relu, has_bias) -> f(x, w[, bias], out=None)

An implementation keeps a plan for each set of shapes that it was called with, at most `MOST_PLANS`, and drops
the oldest first. Where oneDNN cannot compute a convolution, another provider's implementation is kept in
place of a plan. Arrays without elements need no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from synk.ops.kernels.onednn import steps
from synk.ops.kernels.onednn.binding import Unsupported
from synk.ops.kernels.onednn.engine import engine
from synk.ops.kernels.onednn.plan_builder import PlanBuilder
from synk.ops.kernels.onednn.shapes import Shapes
from synk.ops.kernels.onednn.steps import AddSteps
from synk.ops.kernels.provider import Provider
from synk.ops.kernels.window import Convolution, lengths, ordered

FLOAT32 = np.dtype("float32")
MOST_PLANS = 64  # of one implementation; a plan is some primitives and no arrays

Shape = tuple[int, ...]
Compute = Callable[..., Any]  # (out, *arrays)


class OneDnn(Provider):
    """Convolutions by oneDNN.

    The provider ``fallback`` has the same three methods; it computes the convolutions for which oneDNN has no
    fast implementation.
    """

    def __init__(self, fallback: Any):
        super().__init__(np)
        self._fallback = fallback

    def forward(self, convolution: Convolution, relu: bool = False, has_bias: bool = False) -> Forward:
        """Return ``f(x, w[, bias], out=None)``: the convolution plus the bias, rectified if ``relu``."""
        fallback = partial(self._fallback.forward, convolution, relu, has_bias)
        return Forward(convolution, fallback, relu, has_bias)

    def input_gradient(self, convolution: Convolution) -> Gradient:
        """Return ``f(gy, w, height, width, out=None)``: the gradient for images of height x width."""
        return Gradient(convolution, partial(self._fallback.input_gradient, convolution), for_input)

    def weight_gradient(self, convolution: Convolution) -> Gradient:
        """Return ``f(x, gy, kh, kw, out=None)``: the gradient for weights of kh x kw."""
        return Gradient(convolution, partial(self._fallback.weight_gradient, convolution), for_weights)


class Implementation:
    """A function of arrays that keeps one plan for each set of shapes; subclasses add how it is called.

    ``fallback`` returns the implementation of another provider, for shapes that oneDNN cannot compute.
    """

    takes_out = True  # tells synk.compile.tables that the function accepts ``out=``

    def __init__(self, convolution: Convolution, fallback: Callable[[], Any]):
        self.convolution = convolution
        self.plans: dict[tuple, tuple[Shape, Compute]] = {}  # the shape of the result, and what computes it
        self._fallback = fallback

    def plan(
        self, key: tuple, shapes: Shapes, result: Shape, ways: Iterator[AddSteps], *others: int
    ) -> tuple[Shape, Compute]:
        """Plan by the first of ``ways`` that oneDNN supports; return the result's shape and what computes it.

        The pair is kept under ``key``. ``result`` is the shape of the result; ``others`` are arguments that
        the other provider's implementation takes after the arrays.
        """
        made = result, self.compute_empty if shapes.is_empty else self._first(shapes, ways, others)
        if len(self.plans) >= MOST_PLANS:
            del self.plans[next(iter(self.plans))]
        self.plans[key] = made
        return made

    def compute_empty(self, out: np.ndarray, *arrays: np.ndarray) -> None:
        """Compute the result where some array has no elements, so that all sums are empty."""
        out.fill(0)

    def _first(self, shapes: Shapes, ways: Iterator[AddSteps], others: tuple[int, ...]) -> Compute:
        for add_steps in ways:
            with suppress(Unsupported), PlanBuilder(engine()) as builder:
                add_steps(builder, shapes)
                return builder.finish()
        other = self._fallback()
        return lambda out, *arrays: other(*arrays, *others, out=out)


class Forward(Implementation):
    """``f(x, w[, bias], out=None)``."""

    def __init__(self, convolution: Convolution, fallback: Any, relu: bool, has_bias: bool):
        super().__init__(convolution, fallback)
        self.relu, self.has_bias = relu, has_bias

    def __call__(self, x: np.ndarray, w: np.ndarray, *bias: np.ndarray, out: Any = None) -> np.ndarray:
        """Return the convolution, in a new array or in ``out``."""
        key = x.shape, w.shape, engine().threads
        shape, compute = self.plans.get(key) or self._plan(key)
        result = np.empty(shape, FLOAT32) if out is None else out
        if bias:
            compute(result, checked(x), checked(w), checked(bias[0], shape=(w.shape[0],)))
        else:
            compute(result, checked(x), checked(w))
        return result

    def compute_empty(self, out: np.ndarray, *arrays: np.ndarray) -> None:
        """Compute the result where some array has no elements: the bias alone."""
        out.fill(0)
        if self.has_bias:
            bias = np.maximum(arrays[2], 0) if self.relu else arrays[2]
            out += bias if self.convolution.layout == "NHWC" else bias[:, None, None]

    def _plan(self, key: tuple) -> Any:
        shapes = Shapes.of(self.convolution, *key[:2])
        return self.plan(key, shapes, shapes.result_shape, steps.forward(shapes, self.relu, self.has_bias))


class Gradient(Implementation):
    """``f(gy, w, height, width, out=None)`` or ``f(x, gy, kh, kw, out=None)``.

    ``describe`` is `for_input` for the first, or `for_weights` for the second.
    """

    def __init__(self, convolution: Convolution, fallback: Any, describe: Callable[..., tuple]):
        super().__init__(convolution, fallback)
        self._describe = describe

    def __call__(
        self, left: np.ndarray, right: np.ndarray, height: Any, width: Any, out: Any = None
    ) -> np.ndarray:
        """Return the gradient for an array of height x width, in a new array or in ``out``."""
        key = left.shape, right.shape, int(height), int(width), engine().threads
        shape, compute = self.plans.get(key) or self._plan(key)
        result = np.empty(shape, FLOAT32) if out is None else out
        compute(result, checked(left), checked(right))
        return result

    def _plan(self, key: tuple) -> Any:
        return self.plan(key, *self._describe(self.convolution, *key[:4]), *key[2:4])


def for_input(convolution: Convolution, gy: Shape, w: Shape, height: int, width: int) -> tuple:
    """Return the lengths of an input gradient, the shape of its result, and the ways to compute it."""
    image = ordered(convolution.layout, gy[0], w[1] * convolution.groups, height, width)
    shapes = Shapes.of(convolution, image, w)
    _same_result(shapes, gy)
    return shapes, image, steps.input_gradient(shapes)


def for_weights(convolution: Convolution, x: Shape, gy: Shape, kh: int, kw: int) -> tuple:
    """Return the lengths of a weight gradient, the shape of its result, and the ways to compute it."""
    channels, outputs = lengths(convolution.layout, x)[1], lengths(convolution.layout, gy)[1]
    shapes = Shapes.of(convolution, x, (outputs, channels // convolution.groups, kh, kw))
    _same_result(shapes, gy)
    return shapes, shapes.weights_shape, steps.weight_gradient(shapes)


def _same_result(shapes: Shapes, gy: tuple[int, ...]) -> None:
    """Raise ValueError unless ``gy`` is the result's shape: oneDNN would read beyond the array's end."""
    if shapes.result_shape != gy:
        raise ValueError(f"a gradient of shape {gy} does not go with a result of {shapes.result_shape}")


def checked(array: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return the array, or a copy of it if it is not C-contiguous.

    Raise TypeError if it is not float32, and ValueError if ``shape`` is given and it has another one.
    """
    if shape is not None and array.shape != shape:
        raise ValueError(f"an array of shape {array.shape} is given where {shape} is needed")
    if array.dtype != FLOAT32:
        raise TypeError(f"oneDNN's kernels take float32, not {array.dtype}; use another provider")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
