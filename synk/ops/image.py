"""Base classes of Ops on images, which know the order of their axes; and helpers for their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.type import TensorType

from synk.compile.tables import host_inputs
from synk.ops.kernel_op import KernelOp
from synk.ops.kernels.window import Window, lengths


class ImageOp(KernelOp):
    """An Op on images whose axes are in the order of the Op's ``layout``.

    Attributes
    ----------
    image_inputs, image_outputs : tuple of int
        Positions of the inputs and outputs that are images.
    """

    image_inputs: tuple[int, ...] = (0,)
    image_outputs: tuple[int, ...] = (0,)

    @property
    def layout(self) -> str:
        """The order of the axes, "NCHW" or "NHWC", from the Op's geometry, which is its first property."""
        return getattr(self, self.__props__[0]).layout

    def with_layout(self, layout: str) -> ImageOp:
        """Return the same Op for images in another layout."""
        geometry, *others = [getattr(self, name) for name in self.__props__]
        return type(self)(replace(geometry, layout=layout), *others)


class LayoutOp(ImageOp):
    """An Op on images without windows; its last property is the layout."""

    image_layout: str

    @property
    def layout(self) -> str:
        """The order of the axes of images, "NCHW" or "NHWC"; a matrix has one order only."""
        return self.image_layout

    def with_layout(self, layout: str) -> LayoutOp:
        """Return the same Op for images in another layout."""
        *others, _ = [getattr(self, name) for name in self.__props__]
        return type(self)(*others, layout)


class ImageGradient(ImageOp):
    """The gradient of an image Op; its last two inputs are lengths, which have no gradient."""

    def connection_pattern(self, node):
        return [[True]] * (len(node.inputs) - 2) + [[False]] * 2


@host_inputs.register(ImageGradient)
def read_lengths(op: ImageGradient, node: Any) -> range:
    """Return the positions of the two lengths among the inputs, which Python reads: they stay on the host."""
    return range(len(node.inputs) - 2, len(node.inputs))


def length(value: Any) -> Variable:
    """Return a length as a symbolic int64; TypeError unless it is one integer."""
    variable = pt.as_tensor_variable(value)
    if variable.type.ndim or not variable.type.dtype.startswith(("int", "uint")):
        raise TypeError(f"a length is one integer, not a variable of type {variable.type}")
    if isinstance(variable, Constant):
        return pt.constant(variable.data, dtype="int64")
    return variable if variable.type.dtype == "int64" else pt.cast(variable, "int64")


def known(variable: Variable) -> int | None:
    """Return the value of a symbolic length if it is a constant, else None."""
    return int(variable.data) if isinstance(variable, Constant) else None


def known_counts(window: Window, pixels: Sequence[int | None], places: Sequence[int | None]) -> list[Any]:
    """Return how many windows fit into the height and the width of an image; None where that is not known."""
    sides = enumerate(zip(pixels, places, strict=True))
    return [None if None in side else window.output_length(axis, *side) for axis, side in sides]  # type: ignore[arg-type]


def spatial_lengths(layout: str, image: Any) -> list[Any]:
    """Return height and width of symbolic images: as numbers where their type knows them."""
    return list(lengths(layout, tuple(known_lengths(image)))[2:])


def known_lengths(image: Any) -> list[Any]:
    """Return the shape of symbolic images, with numbers where their type knows them."""
    return [image.shape[k] if n is None else n for k, n in enumerate(image.type.shape)]


def one_dtype(**tensors: Any) -> str:
    """Return the dtype of the tensors; TypeError if they differ. A tensor that is None is passed over."""
    dtypes = {name: tensor.type.dtype for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(dtypes.values()))
    for name, dtype in dtypes.items():
        if dtype != first:
            listed = ", ".join(f"{n} is {d}" for n, d in dtypes.items())
            raise TypeError(f"{listed}: give all one dtype, such as {name}.astype({first!r})")
    return first


def result(dtype: str, shape: Sequence[int | None]) -> Variable:
    """Return a new symbolic variable of this dtype and shape, for an output."""
    return TensorType(dtype, shape=tuple(shape))()


def pair(name: str, value: Any) -> tuple[int, int]:
    """Return an int, or a pair of them, as a pair for height and width; TypeError for anything else."""
    values = (value, value) if is_int(value) else value
    if not isinstance(values, tuple | list) or len(values) != 2 or not all(map(is_int, values)):
        raise TypeError(f"{name}={value!r} must be an int or a pair of ints (height, width)")
    return int(values[0]), int(values[1])


def padding_pairs(value: Any, name: str = "padding") -> tuple[tuple[int, int], tuple[int, int]]:
    """Return padding as ((top, bottom), (left, right)): an int or a pair of ints pads both ends alike.

    Raise TypeError for anything else; the message says ``name``.
    """
    nested = isinstance(value, tuple | list) and all(isinstance(p, tuple | list) for p in value)
    if nested and len(value) == 2:
        return pair(name, value[0]), pair(name, value[1])
    height, width = pair(name, value)
    return (height, height), (width, width)


def is_int(value: Any) -> bool:
    """Return whether ``value`` is an integer; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
