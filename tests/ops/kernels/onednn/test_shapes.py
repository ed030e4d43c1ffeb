"""Lengths, strides and the choice of recipes; none of it needs the library."""

import numpy as np
import pytest

from synk.ops.kernels.onednn.convolution import checked
from synk.ops.kernels.onednn.convolution_plan import pointer_reader
from synk.ops.kernels.onednn.shapes import ArrayLayout, Shapes, contiguous
from synk.ops.kernels.window import Convolution, Window


def shapes(layout="NHWC", groups=1, k=1, inputs=64, outputs=64, size=8, **window):
    convolution = Convolution(Window(None, **window), groups, layout)
    image = (2, inputs, size, size) if layout == "NCHW" else (2, size, size, inputs)
    return Shapes.of(convolution, image, (outputs, inputs // groups, k, k))


@pytest.mark.parametrize("lengths", [(3,), (2, 3), (4, 2, 3), (1, 5, 1, 2)])
def test_contiguous_strides_are_those_of_numpy(lengths):
    strides = tuple(stride // 4 for stride in np.empty(lengths, "float32").strides)
    assert contiguous(*lengths) == ArrayLayout(lengths, strides)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_axes_are_named_alike_in_both_layouts(layout):
    array = np.empty((2, 8, 8, 3) if layout == "NHWC" else (2, 3, 8, 8), "float32")
    named = array.transpose(0, 3, 1, 2) if layout == "NHWC" else array
    image = shapes(layout, inputs=3).image
    assert image == ArrayLayout(named.shape, tuple(stride // 4 for stride in named.strides))


def test_weights_of_groups_have_an_axis_more():
    assert shapes(groups=4, k=3, inputs=8, outputs=12).weights == contiguous(4, 3, 2, 3, 3)


def test_seen_pixels_are_a_view_of_the_image():
    here = shapes(inputs=5, size=6, stride=(2, 3))
    view = np.empty((2, 6, 6, 5), "float32").transpose(0, 3, 1, 2)[:, :, ::2, ::3]
    assert here.seen == ArrayLayout(view.shape, tuple(stride // 4 for stride in view.strides))


def test_windows_that_skip_pixels_along_either_axis_are_strided():
    assert [shapes(stride=stride).is_strided for stride in [(1, 1), (1, 2), (2, 1)]] == [False, True, True]


PADDED = ((0, 1), (0, 0))


@pytest.mark.parametrize(
    ("here", "of_pixels", "otherwise"),
    [
        (shapes(), True, False),
        (shapes(inputs=1024, outputs=1024), True, True),
        (shapes(stride=(2, 2)), True, False),
        (shapes(stride=(2, 2), size=7), False, False),
        (shapes(k=3), False, False),
        (shapes(padding=PADDED), False, False),
        (shapes("NCHW"), False, False),
        (shapes(groups=2), False, False),
        (shapes(inputs=3), False, False),
    ],
)
def test_which_convolutions_are_products(here, of_pixels, otherwise):
    assert here.is_product(of_pixels=True) == of_pixels
    assert here.is_product(of_pixels=False) == otherwise


def test_few_weights_with_longer_rows_are_transposed():
    assert shapes(inputs=64, outputs=256).is_transposed
    assert not shapes(inputs=256, outputs=64).is_transposed
    assert not shapes(inputs=512, outputs=2048).is_transposed


def test_few_channels_prefer_gemm():
    assert shapes(inputs=3).prefers_gemm
    assert not shapes(inputs=16).prefers_gemm
    assert not shapes(inputs=8, groups=8).prefers_gemm


def test_pointers_are_those_of_the_arrays():
    array = np.arange(10, dtype="float32")
    for view in (array, array[3:], array.reshape(2, 5)):
        assert pointer_reader()(view) == view.ctypes.data


def test_a_contiguous_array_is_not_copied():
    array = np.ones((2, 3), "float32")
    assert checked(array) is array
    assert checked(array.T).flags.c_contiguous
