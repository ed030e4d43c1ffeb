"""The steps of a convolution and of its gradients, as oneDNN's primitives.

    forward           image, weights [, bias] -> result
    input_gradient    gradient of the result, weights -> gradient of the image
    weight_gradient   image, gradient of the result -> gradient of the weights

Each has two recipes: by oneDNN's convolution, which wants weights in an order that it chooses itself, so they
are reordered on the way; and, for windows of 1 x 1, by a product of matrices. A recipe tells a planner of
the result first, and of its inputs in the order above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from synk.kernels.onednn import binding
from synk.kernels.onednn.binding import BIAS, SOURCE, TARGET, WEIGHTS, Dims
from synk.kernels.onednn.memory import Layout, contiguous
from synk.kernels.onednn.planner import Memory, Planner
from synk.kernels.onednn.shapes import Shapes

Recipe = Callable[[Planner, Shapes], None]


def forward(shapes: Shapes, relu: bool, has_bias: bool) -> Iterator[Recipe]:
    """Yield recipes of the result, the best first."""
    if shapes.is_product(of_pixels=False):
        yield lambda planner, shapes: product_forward(planner, shapes, relu, has_bias)
    yield lambda planner, shapes: convolution_forward(planner, shapes, relu, has_bias)


def input_gradient(shapes: Shapes) -> Iterator[Recipe]:
    """Yield recipes of the gradient for images, the best first."""
    if shapes.is_product(of_pixels=False):
        yield product_input_gradient
    yield convolution_input_gradient


def weight_gradient(shapes: Shapes) -> Iterator[Recipe]:
    """Yield recipes of the gradient for weights, the best first."""
    if shapes.is_product(of_pixels=True):
        yield product_weight_gradient
    yield convolution_weight_gradient


def convolution_forward(planner: Planner, shapes: Shapes, relu: bool, has_bias: bool) -> None:
    """By oneDNN's convolution."""
    result, image, weights = map(planner.array, (shapes.result, shapes.image, shapes.weights))
    arguments = {SOURCE: image, TARGET: result}
    if has_bias:
        arguments[BIAS] = planner.array(contiguous(shapes.outputs))
    bias = arguments[BIAS].descriptor if has_bias else None
    primitive = _forward_descriptor(planner, shapes, planner.attributes(relu), bias)
    staged = _staged(planner, primitive, binding.WEIGHTS_DESCRIPTOR, weights)
    if staged is not weights:
        planner.reorder(weights, staged)
    slope = planner.slope(4) if relu else {}
    planner.step(primitive, {**arguments, WEIGHTS: staged, **slope})


def convolution_input_gradient(planner: Planner, shapes: Shapes) -> None:
    """By oneDNN's convolution."""
    image, result, weights = map(planner.array, (shapes.image, shapes.result, shapes.weights))
    attributes = planner.attributes()
    primitive = planner.primitive(
        planner.api.dnnl_convolution_backward_data_primitive_desc_create,
        *(planner.engine.handle, binding.DIRECT),
        *(image.descriptor, _any(planner, shapes), result.descriptor, *_window(shapes)),
        *(_forward_descriptor(planner, shapes, attributes), attributes),
        prefer="gemm" if shapes.prefers_gemm else "",
    )
    staged = _staged(planner, primitive, binding.WEIGHTS_DESCRIPTOR, weights)
    if staged is not weights:
        planner.reorder(weights, staged)
    arguments = {binding.SOURCE_GRADIENT: image, WEIGHTS: staged, binding.TARGET_GRADIENT: result}
    planner.step(primitive, arguments)


def convolution_weight_gradient(planner: Planner, shapes: Shapes) -> None:
    """By oneDNN's convolution."""
    weights, image, result = map(planner.array, (shapes.weights, shapes.image, shapes.result))
    attributes = planner.attributes()
    primitive = planner.primitive(
        planner.api.dnnl_convolution_backward_weights_primitive_desc_create,
        *(planner.engine.handle, binding.DIRECT),
        *(image.descriptor, _any(planner, shapes), None, result.descriptor, *_window(shapes)),
        *(_forward_descriptor(planner, shapes, attributes), attributes),
    )
    staged = _staged(planner, primitive, binding.WEIGHTS_GRADIENT_DESCRIPTOR, weights)
    planner.step(
        primitive,
        {SOURCE: image, binding.WEIGHTS_GRADIENT: staged, binding.TARGET_GRADIENT: result},
    )
    if staged is not weights:
        planner.reorder(staged, weights)


def product_forward(planner: Planner, shapes: Shapes, relu: bool, has_bias: bool) -> None:
    """Result (pixels, outputs) = image (pixels, inputs) @ weights transposed."""
    pixels, inputs, outputs = shapes.pixels, shapes.inputs, shapes.outputs
    result = planner.array(contiguous(pixels, outputs))
    image = _image_as_matrix(planner, shapes)
    weights = planner.array(Layout((inputs, outputs), (1, inputs)))
    bias = planner.array(contiguous(1, outputs)) if has_bias else None
    _product(planner, image, weights, result, bias, relu)


def product_input_gradient(planner: Planner, shapes: Shapes) -> None:
    """Gradient (pixels, inputs) = gradient of the result (pixels, outputs) @ weights."""
    pixels, inputs, outputs = shapes.pixels, shapes.inputs, shapes.outputs
    if not shapes.is_strided:
        image = planner.array(contiguous(pixels, inputs))
    else:
        seen = planner.array(shapes.seen)
        image, spread = _compact(planner, shapes)
    result = planner.array(contiguous(pixels, outputs))
    weights = planner.array(contiguous(outputs, inputs))
    _product(planner, result, weights, image)
    if shapes.is_strided:
        planner.zeroes = True  # the pixels that no window sees
        planner.reorder(spread, seen)


def product_weight_gradient(planner: Planner, shapes: Shapes) -> None:
    """Gradient (outputs, inputs) = gradient of the result transposed @ image; or that, transposed."""
    pixels, inputs, outputs = shapes.pixels, shapes.inputs, shapes.outputs
    weights = planner.array(contiguous(outputs, inputs))
    if not shapes.is_transposed:
        image = _image_as_matrix(planner, shapes)
        result = planner.array(Layout((outputs, pixels), (1, outputs)))
        _product(planner, result, image, weights)
        return
    image = _image_as_matrix(planner, shapes, transposed=True)
    result = planner.array(contiguous(pixels, outputs))
    turned, upright = planner.buffer(
        planner.descriptor(contiguous(inputs, outputs)),
        planner.descriptor(Layout((outputs, inputs), (1, outputs))),
    )
    _product(planner, image, result, turned)
    planner.reorder(upright, weights)


def _image_as_matrix(planner: Planner, shapes: Shapes, transposed: bool = False) -> Memory:
    """Return the pixels that windows see, (pixels, inputs), copied together if there are others between."""
    pixels, inputs = shapes.pixels, shapes.inputs
    matrix = Layout((inputs, pixels), (1, inputs)) if transposed else contiguous(pixels, inputs)
    if not shapes.is_strided:
        return planner.array(matrix)
    seen = planner.array(shapes.seen)
    as_matrix, as_image = _compact(planner, shapes, matrix)
    planner.reorder(seen, as_image)
    return as_matrix


def _compact(planner: Planner, shapes: Shapes, matrix: Layout | None = None) -> tuple[Memory, ...]:
    """Return a buffer of the pixels that windows see, as a matrix and as images."""
    matrix = matrix or contiguous(shapes.pixels, shapes.inputs)
    _, inputs, rows, columns = named = shapes.seen.lengths
    images = Layout(named, (rows * columns * inputs, 1, columns * inputs, inputs))
    return planner.buffer(planner.descriptor(matrix), planner.descriptor(images))


def _product(
    planner: Planner,
    left: Memory,
    right: Memory,
    result: Memory,
    bias: Memory | None = None,
    relu: bool = False,
) -> None:
    """Add the step result = left @ right (+ bias) (then max(0, .))."""
    primitive = planner.primitive(
        planner.api.dnnl_matmul_primitive_desc_create,
        *(planner.engine.handle, left.descriptor, right.descriptor, bias and bias.descriptor),
        *(result.descriptor, planner.attributes(relu)),
    )
    arguments = {SOURCE: left, WEIGHTS: right, TARGET: result}
    if bias is not None:
        arguments[BIAS] = bias
    planner.step(primitive, {**arguments, **(planner.slope(2) if relu else {})})


def _forward_descriptor(planner: Planner, shapes: Shapes, attributes: int, bias: int | None = None) -> int:
    """Return the descriptor of the convolution, which that of a gradient takes as a hint."""
    return planner.primitive(
        planner.api.dnnl_convolution_forward_primitive_desc_create,
        *(planner.engine.handle, binding.FORWARD, binding.DIRECT),
        *(planner.descriptor(shapes.image), _any(planner, shapes), bias, planner.descriptor(shapes.result)),
        *(*_window(shapes), attributes),
    )


def _staged(planner: Planner, primitive: int, what: int, weights: Memory) -> Memory:
    """Return weights in the order that a primitive wants: the array itself, or a buffer."""
    wanted = planner.query(primitive, what)
    if planner.api.dnnl_memory_desc_equal(wanted, weights.descriptor):
        return weights
    return planner.buffer(wanted)[0]


def _any(planner: Planner, shapes: Shapes) -> int:
    return planner.descriptor(Layout(shapes.weights.lengths))


def _window(shapes: Shapes) -> tuple[Any, ...]:
    """Return strides, dilations, padding before and padding after, as oneDNN counts them."""
    window = shapes.convolution.window
    before, after = zip(*window.padding, strict=True)
    gaps = [dilation - 1 for dilation in window.dilation]
    return Dims(*window.stride), Dims(*gaps), Dims(*before), Dims(*after)
