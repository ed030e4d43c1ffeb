"""Where the elements of an array lie, told to oneDNN.

oneDNN names axes in the order (image, channel, row, column) and (group, output, input, row, column); strides
tell how they really lie, so both layouts of images are plain descriptors of the same lengths.

    Layout(lengths, strides) -> descriptor        array -> pointer
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from synk.kernels.onednn import binding
from synk.native.loading import HEAD, layout_is_known

FLOAT32 = np.dtype("float32")


class Layout(NamedTuple):
    """Lengths of axes, and strides in elements; without strides, oneDNN chooses."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...] | None = None


def contiguous(*lengths: int) -> Layout:
    """Return the layout of a C-contiguous array."""
    strides = [1]
    for length in lengths[:0:-1]:
        strides.append(strides[-1] * length)
    return Layout(lengths, tuple(strides[::-1]))


def describe(api: Any, layout: Layout) -> int:
    """Return a new memory descriptor of float32 elements."""
    ndim, lengths = len(layout.lengths), binding.Dims(*layout.lengths)
    make: Any
    order: Any
    if layout.strides is None:
        make, order = api.dnnl_memory_desc_create_with_tag, binding.ANY
    else:
        make, order = api.dnnl_memory_desc_create_with_strides, binding.Dims(*layout.strides)
    return binding.created(make, ndim, lengths, binding.FLOAT32, order)


def checked(array: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return a C-contiguous float32 array with these elements, the array itself if it is one.

    Raises
    ------
    TypeError
        It is not float32.
    ValueError
        It has not the ``shape`` that is given.
    """
    if shape is not None and array.shape != shape:
        raise ValueError(f"an array of shape {array.shape} is given where {shape} is needed")
    if array.dtype != FLOAT32:
        raise TypeError(f"oneDNN's kernels take float32, not {array.dtype}; use another provider")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


@cache
def pointer_reader() -> Callable[[Any], int]:
    """Return a function that tells the address of an array's first element.

    ``array.ctypes.data`` builds an object and takes ten times as long as a look into the array's head.
    """
    if not layout_is_known():
        return lambda array: array.ctypes.data
    word, head = ctypes.c_ssize_t.from_address, HEAD
    return lambda array: word(id(array) + head).value
