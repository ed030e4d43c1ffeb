"""The steps of a convolution and of its gradients, as oneDNN's primitives.

    forward           image, weights [, bias] -> result
    input_gradient    gradient of the result, weights -> gradient of the image
    weight_gradient   image, gradient of the result -> gradient of the weights

Each of the three can be computed in two ways: by oneDNN's convolution, which chooses the order of the weights
in memory, so that a step reorders them; and, for windows of 1 x 1, by a product of matrices. A function that
adds steps registers its arrays with the builder: the result first, then the inputs in the order above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from synk.ops.kernels.onednn import binding
from synk.ops.kernels.onednn.binding import BIAS, SOURCE, TARGET, WEIGHTS, Dims
from synk.ops.kernels.onednn.plan_builder import MemoryObject, PlanBuilder
from synk.ops.kernels.onednn.shapes import ArrayLayout, Shapes, contiguous

AddSteps = Callable[[PlanBuilder, Shapes], None]


def forward(shapes: Shapes, relu: bool, has_bias: bool) -> Iterator[AddSteps]:
    """Yield functions that add the steps of a convolution, the fastest way first."""
    if shapes.is_product(of_pixels=False):
        yield lambda builder, shapes: product_forward(builder, shapes, relu, has_bias)
    yield lambda builder, shapes: convolution_forward(builder, shapes, relu, has_bias)


def input_gradient(shapes: Shapes) -> Iterator[AddSteps]:
    """Yield functions that add the steps of the gradient for images, the fastest way first."""
    if shapes.is_product(of_pixels=False):
        yield product_input_gradient
    yield convolution_input_gradient


def weight_gradient(shapes: Shapes) -> Iterator[AddSteps]:
    """Yield functions that add the steps of the gradient for weights, the fastest way first."""
    if shapes.is_product(of_pixels=True):
        yield product_weight_gradient
    yield convolution_weight_gradient


def convolution_forward(builder: PlanBuilder, shapes: Shapes, relu: bool, has_bias: bool) -> None:
    """Add the steps of a convolution by oneDNN's primitive for it."""
    result, image, weights = map(builder.array, (shapes.result, shapes.image, shapes.weights))
    arguments = {SOURCE: image, TARGET: result}
    if has_bias:
        arguments[BIAS] = builder.array(contiguous(shapes.outputs))
    bias = arguments[BIAS].descriptor if has_bias else None
    primitive = _forward_descriptor(builder, shapes, builder.attributes(relu), bias)
    staged = _reordered(builder, primitive, weights)
    slope = builder.slope(4) if relu else {}
    builder.step(primitive, {**arguments, WEIGHTS: staged, **slope})


def convolution_input_gradient(builder: PlanBuilder, shapes: Shapes) -> None:
    """Add the steps of the gradient for images by oneDNN's primitive for it."""
    image, result, weights = map(builder.array, (shapes.image, shapes.result, shapes.weights))
    attributes = builder.attributes()
    primitive = builder.primitive(
        builder.api.dnnl_convolution_backward_data_primitive_desc_create,
        *(builder.engine.handle, binding.DIRECT),
        *(image.descriptor, _any(builder, shapes), result.descriptor, *_window(shapes)),
        *(_forward_descriptor(builder, shapes, attributes), attributes),
        prefer="gemm" if shapes.prefers_gemm else "",
    )
    staged = _reordered(builder, primitive, weights)
    arguments = {binding.SOURCE_GRADIENT: image, WEIGHTS: staged, binding.TARGET_GRADIENT: result}
    builder.step(primitive, arguments)


def convolution_weight_gradient(builder: PlanBuilder, shapes: Shapes) -> None:
    """Add the steps of the gradient for weights by oneDNN's primitive for it."""
    weights, image, result = map(builder.array, (shapes.weights, shapes.image, shapes.result))
    attributes = builder.attributes()
    primitive = builder.primitive(
        builder.api.dnnl_convolution_backward_weights_primitive_desc_create,
        *(builder.engine.handle, binding.DIRECT),
        *(image.descriptor, _any(builder, shapes), None, result.descriptor, *_window(shapes)),
        *(_forward_descriptor(builder, shapes, attributes), attributes),
    )
    staged = _staged(builder, primitive, binding.WEIGHTS_GRADIENT_DESCRIPTOR, weights)
    builder.step(
        primitive,
        {SOURCE: image, binding.WEIGHTS_GRADIENT: staged, binding.TARGET_GRADIENT: result},
    )
    if staged is not weights:
        builder.reorder(staged, weights)


def product_forward(builder: PlanBuilder, shapes: Shapes, relu: bool, has_bias: bool) -> None:
    """Add the steps of result (pixels, outputs) = image (pixels, inputs) @ weights transposed."""
    pixels, inputs, outputs = shapes.pixels, shapes.inputs, shapes.outputs
    result = builder.array(contiguous(pixels, outputs))
    image = _image_as_matrix(builder, shapes)
    weights = builder.array(ArrayLayout((inputs, outputs), (1, inputs)))
    bias = builder.array(contiguous(1, outputs)) if has_bias else None
    _product(builder, image, weights, result, bias, relu)


def product_input_gradient(builder: PlanBuilder, shapes: Shapes) -> None:
    """Add the steps of image gradient (pixels, inputs) = result gradient (pixels, outputs) @ weights."""
    pixels, inputs, outputs = shapes.pixels, shapes.inputs, shapes.outputs
    if not shapes.is_strided:
        image = builder.array(contiguous(pixels, inputs))
    else:
        seen = builder.array(shapes.seen)
        image, spread = _compact(builder, shapes)
    result = builder.array(contiguous(pixels, outputs))
    weights = builder.array(contiguous(outputs, inputs))
    _product(builder, result, weights, image)
    if shapes.is_strided:
        builder.zeroes = True  # the pixels that no window sees
        builder.reorder(spread, seen)


def product_weight_gradient(builder: PlanBuilder, shapes: Shapes) -> None:
    """Add the steps of weight gradient (outputs, inputs) = result gradient transposed @ image.

    Where it is faster, the transpose of this product is computed, and transposed by a last step.
    """
    pixels, inputs, outputs = shapes.pixels, shapes.inputs, shapes.outputs
    weights = builder.array(contiguous(outputs, inputs))
    if not shapes.is_transposed:
        image = _image_as_matrix(builder, shapes)
        result = builder.array(ArrayLayout((outputs, pixels), (1, outputs)))
        _product(builder, result, image, weights)
        return
    image = _image_as_matrix(builder, shapes, transposed=True)
    result = builder.array(contiguous(pixels, outputs))
    turned, upright = builder.buffer(
        builder.descriptor(contiguous(inputs, outputs)),
        builder.descriptor(ArrayLayout((outputs, inputs), (1, outputs))),
    )
    _product(builder, image, result, turned)
    builder.reorder(upright, weights)


def _image_as_matrix(builder: PlanBuilder, shapes: Shapes, transposed: bool = False) -> MemoryObject:
    """Return the pixels that windows read as a matrix (pixels, inputs).

    If windows skip pixels, a step copies those that are read into a buffer.
    """
    pixels, inputs = shapes.pixels, shapes.inputs
    matrix = ArrayLayout((inputs, pixels), (1, inputs)) if transposed else contiguous(pixels, inputs)
    if not shapes.is_strided:
        return builder.array(matrix)
    seen = builder.array(shapes.seen)
    as_matrix, as_image = _compact(builder, shapes, matrix)
    builder.reorder(seen, as_image)
    return as_matrix


def _compact(
    builder: PlanBuilder, shapes: Shapes, matrix: ArrayLayout | None = None
) -> tuple[MemoryObject, ...]:
    """Return two memory objects for one buffer of the pixels that windows read: a matrix, and images."""
    matrix = matrix or contiguous(shapes.pixels, shapes.inputs)
    _, inputs, rows, columns = named = shapes.seen.lengths
    images = ArrayLayout(named, (rows * columns * inputs, 1, columns * inputs, inputs))
    return builder.buffer(builder.descriptor(matrix), builder.descriptor(images))


def _product(
    builder: PlanBuilder,
    left: MemoryObject,
    right: MemoryObject,
    result: MemoryObject,
    bias: MemoryObject | None = None,
    relu: bool = False,
) -> None:
    """Add the step result = left @ right (+ bias) (then max(0, .))."""
    primitive = builder.primitive(
        builder.api.dnnl_matmul_primitive_desc_create,
        *(builder.engine.handle, left.descriptor, right.descriptor, bias and bias.descriptor),
        *(result.descriptor, builder.attributes(relu)),
    )
    arguments = {SOURCE: left, WEIGHTS: right, TARGET: result}
    if bias is not None:
        arguments[BIAS] = bias
    builder.step(primitive, {**arguments, **(builder.slope(2) if relu else {})})


def _forward_descriptor(
    builder: PlanBuilder, shapes: Shapes, attributes: int, bias: int | None = None
) -> int:
    """Return the descriptor of the convolution; to make that of a gradient, oneDNN asks for it."""
    return builder.primitive(
        builder.api.dnnl_convolution_forward_primitive_desc_create,
        *(builder.engine.handle, binding.FORWARD, binding.DIRECT),
        *(builder.descriptor(shapes.image), _any(builder, shapes), bias, builder.descriptor(shapes.result)),
        *(*_window(shapes), attributes),
    )


def _reordered(builder: PlanBuilder, primitive: int, weights: MemoryObject) -> MemoryObject:
    """Return weights in the order that a primitive reads: the array, or a buffer that a step copies it to."""
    staged = _staged(builder, primitive, binding.WEIGHTS_DESCRIPTOR, weights)
    if staged is not weights:
        builder.reorder(weights, staged)
    return staged


def _staged(builder: PlanBuilder, primitive: int, what: int, weights: MemoryObject) -> MemoryObject:
    """Return memory for weights in the order that a primitive wants: the array if it has it, or a buffer."""
    wanted = builder.query(primitive, what)
    if builder.api.dnnl_memory_desc_equal(wanted, weights.descriptor):
        return weights
    return builder.buffer(wanted)[0]


def _any(builder: PlanBuilder, shapes: Shapes) -> int:
    return builder.descriptor(ArrayLayout(shapes.weights.lengths))


def _window(shapes: Shapes) -> tuple[Any, ...]:
    """Return strides, dilations, padding before and padding after, as oneDNN counts them."""
    window = shapes.convolution.window
    before, after = zip(*window.padding, strict=True)
    gaps = [dilation - 1 for dilation in window.dilation]
    return Dims(*window.stride), Dims(*gaps), Dims(*before), Dims(*after)
