"""The provider of oneDNN: where a convolution, or a gradient of one, becomes steps of its primitives.

    OneDnn(instead).forward(convolution, relu, has_bias) -> f(x, w[, bias], out=None)

An implementation keeps a plan for each set of shapes that it has met, up to `MOST_PLANS`; the oldest goes
first. Where oneDNN has nothing for a convolution, the same implementation of another provider is kept in its
place. Without elements there is nothing to plan.
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

    The provider ``instead`` has the same three methods, and computes what oneDNN has no fast implementation
    for.
    """

    def __init__(self, instead: Any):
        super().__init__(np)
        self._instead = instead

    def forward(self, convolution: Convolution, relu: bool = False, has_bias: bool = False) -> Forward:
        """Return ``f(x, w[, bias], out=None)``: the convolution, plus a bias per channel, then max(0, .)."""
        instead = partial(self._instead.forward, convolution, relu, has_bias)
        return Forward(convolution, instead, relu, has_bias)

    def input_gradient(self, convolution: Convolution) -> Gradient:
        """Return ``f(gy, w, height, width, out=None)``: the gradient for images of height x width."""
        return Gradient(convolution, partial(self._instead.input_gradient, convolution), for_input)

    def weight_gradient(self, convolution: Convolution) -> Gradient:
        """Return ``f(x, gy, kh, kw, out=None)``: the gradient for weights of kh x kw."""
        return Gradient(convolution, partial(self._instead.weight_gradient, convolution), for_weights)


class Implementation:
    """Keep plans by shapes: forward and gradients add how they are called.

    ``instead`` makes an implementation that takes over where oneDNN has none.
    """

    takes_out = True  # the mark of synk.compile.tables

    def __init__(self, convolution: Convolution, instead: Callable[[], Any]):
        self.convolution = convolution
        self.plans: dict[tuple, tuple[Shape, Compute]] = {}  # the shape of the result, and what computes it
        self._instead = instead

    def plan(
        self, key: tuple, shapes: Shapes, result: Shape, ways: Iterator[AddSteps], *others: int
    ) -> tuple[Shape, Compute]:
        """Make a function for ``shapes`` by the first of ``ways`` that oneDNN supports; keep it as ``key``.

        ``result`` is the shape of the result; ``others`` are given to the other provider behind the arrays.
        """
        made = result, self.nothing if shapes.is_empty else self._first(shapes, ways, others)
        if len(self.plans) >= MOST_PLANS:
            del self.plans[next(iter(self.plans))]
        self.plans[key] = made
        return made

    def nothing(self, out: np.ndarray, *arrays: np.ndarray) -> None:
        """Compute the result where no product has a factor."""
        out.fill(0)

    def _first(self, shapes: Shapes, ways: Iterator[AddSteps], others: tuple[int, ...]) -> Compute:
        for add_steps in ways:
            with suppress(Unsupported), PlanBuilder(engine()) as builder:
                add_steps(builder, shapes)
                return builder.finish()
        other = self._instead()
        return lambda out, *arrays: other(*arrays, *others, out=out)


class Forward(Implementation):
    """``f(x, w[, bias], out=None)``."""

    def __init__(self, convolution: Convolution, instead: Any, relu: bool, has_bias: bool):
        super().__init__(convolution, instead)
        self.relu, self.has_bias = relu, has_bias

    def __call__(self, x: np.ndarray, w: np.ndarray, *bias: np.ndarray, out: Any = None) -> np.ndarray:
        """Return the result, a new array or ``out``."""
        key = x.shape, w.shape, engine().threads
        shape, compute = self.plans.get(key) or self._plan(key)
        result = np.empty(shape, FLOAT32) if out is None else out
        if bias:
            compute(result, checked(x), checked(w), checked(bias[0], shape=(w.shape[0],)))
        else:
            compute(result, checked(x), checked(w))
        return result

    def nothing(self, out: np.ndarray, *arrays: np.ndarray) -> None:
        """Compute the result where no product has a factor: the bias."""
        out.fill(0)
        if self.has_bias:
            bias = np.maximum(arrays[2], 0) if self.relu else arrays[2]
            out += bias if self.convolution.layout == "NHWC" else bias[:, None, None]

    def _plan(self, key: tuple) -> Any:
        shapes = Shapes.of(self.convolution, *key[:2])
        return self.plan(key, shapes, shapes.result_shape, steps.forward(shapes, self.relu, self.has_bias))


class Gradient(Implementation):
    """``f(gy, w, height, width, out=None)`` or ``f(x, gy, kh, kw, out=None)``: ``state`` says which."""

    def __init__(self, convolution: Convolution, instead: Any, state: Callable[..., tuple]):
        super().__init__(convolution, instead)
        self._state = state

    def __call__(
        self, left: np.ndarray, right: np.ndarray, height: Any, width: Any, out: Any = None
    ) -> np.ndarray:
        """Return the gradient for an array of height x width, a new array or ``out``."""
        key = left.shape, right.shape, int(height), int(width), engine().threads
        shape, compute = self.plans.get(key) or self._plan(key)
        result = np.empty(shape, FLOAT32) if out is None else out
        compute(result, checked(left), checked(right))
        return result

    def _plan(self, key: tuple) -> Any:
        return self.plan(key, *self._state(self.convolution, *key[:4]), *key[2:4])


def for_input(convolution: Convolution, gy: Shape, w: Shape, height: int, width: int) -> tuple:
    """Return the shapes of an input gradient, that of its result, and the ways to compute it."""
    image = ordered(convolution.layout, gy[0], w[1] * convolution.groups, height, width)
    shapes = Shapes.of(convolution, image, w)
    _same_result(shapes, gy)
    return shapes, image, steps.input_gradient(shapes)


def for_weights(convolution: Convolution, x: Shape, gy: Shape, kh: int, kw: int) -> tuple:
    """Return the shapes of a weight gradient, that of its result, and the ways to compute it."""
    channels, outputs = lengths(convolution.layout, x)[1], lengths(convolution.layout, gy)[1]
    shapes = Shapes.of(convolution, x, (outputs, channels // convolution.groups, kh, kw))
    _same_result(shapes, gy)
    return shapes, shapes.weights_shape, steps.weight_gradient(shapes)


def _same_result(shapes: Shapes, gy: tuple[int, ...]) -> None:
    """Raise ValueError if a gradient is not of the shape of the result: oneDNN would read beyond its end."""
    if shapes.result_shape != gy:
        raise ValueError(f"a gradient of shape {gy} does not go with a result of {shapes.result_shape}")


def checked(array: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return a C-contiguous float32 array with these elements, the array itself if it is one.

    TypeError if it is not float32, ValueError if it has not the ``shape`` that is given.
    """
    if shape is not None and array.shape != shape:
        raise ValueError(f"an array of shape {array.shape} is given where {shape} is needed")
    if array.dtype != FLOAT32:
        raise TypeError(f"oneDNN's kernels take float32, not {array.dtype}; use another provider")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
