"""The geometry of windows, against counting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cases.images import pairs
from synk.ops.kernels.window import Convolution, Pooling, Window, lengths, ordered


def starts(length, size, stride, padding, dilation):
    """Return the first pixel of every window that fits, by trying."""
    last = length + padding[1] - (size - 1) * dilation
    return [start for start in range(-padding[0], last) if (start + padding[0]) % stride == 0]


@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 4), pairs(st.integers(0, 5)), st.integers(1, 3))
def test_windows_are_counted_and_found(length, size, stride, padding, dilation):
    window = Window(None, (1, stride), ((0, 0), padding), (1, dilation))
    expected = starts(length, size, stride, padding, dilation)
    if not expected:
        with pytest.raises(ValueError, match="does not fit in a width"):
            window.output_lengths(1, length, 1, size)
        return
    assert window.output_lengths(1, length, 1, size) == (1, len(expected))
    for place in range(size):
        outputs, pixels = window.inside(1, place, length, len(expected))
        seen = [(o, start + place * dilation) for o, start in enumerate(expected)]
        wanted = [(o, pixel) for o, pixel in seen if 0 <= pixel < length]
        found = zip(range(len(expected))[outputs], range(length)[pixels], strict=True)
        assert list(found) == wanted


in_two = Convolution(Window(), 2).output_shape


def test_output_shapes():
    window = Window(None, (2, 1), ((1, 2), (0, 0)), (1, 2))
    assert Convolution(window, 2).output_shape((5, 4, 9, 8), (6, 2, 3, 2)) == (5, 6, 5, 6)
    assert Convolution(window, 2, "NHWC").output_shape((5, 9, 8, 4), (6, 2, 3, 2)) == (5, 5, 6, 6)
    assert Pooling(Window((3, 2), (2, 2)), "NHWC").output_shape((1, 7, 4, 3)) == (1, 3, 2, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(size=(2, 0)), r"size=\(2, 0\) must be 1 or more"),
        (lambda: Window(stride=(2, 0)), r"stride=\(2, 0\) must be 1 or more"),
        (lambda: Window(dilation=(2, 0)), r"dilation=\(2, 0\) must be 1 or more"),
        (lambda: Window(padding=((0, 0), (1, -1))), r"padding=\(\(0, 0\), \(1, -1\)\) must not be neg"),
        (lambda: Window().output_lengths(3, 3, 0, 1), "a window of 0 places"),
        (lambda: in_two((1, 5, 3, 3), (4, 2, 1, 1)), "groups=2 does not divide 5 input channels"),
        (lambda: in_two((1, 4, 3, 3), (5, 2, 1, 1)), "groups=2 does not divide 5 output channels"),
        (lambda: in_two((1, 4, 3, 3), (4, 4, 1, 1)), r"the image has 4 channels; weights for 4 .* need 8"),
        (lambda: in_two((1, 4, 3, 3), (4, 2, 4, 1)), "4 places, 4 pixels, does not fit in a height of 3"),
        (lambda: Convolution(Window(), 0), "groups=0 must be 1 or more"),
        (lambda: Convolution(Window(), layout="CHWN"), "layout='CHWN' is unknown; choose one of NCHW, NHWC"),
        (lambda: Pooling(Window()), "needs a size"),
        (lambda: Pooling(Window((2, 2), dilation=(1, 2))), "a dilation of 1"),
        (lambda: Pooling(Window((2, 3), padding=((0, 2), (0, 0)))), r"must be less than size=\(2, 3\)"),
        (lambda: Pooling(Window((1, 1))).output_shape((1, 1, 0, 4)), "0 x 4 pixels have nothing to pool"),
    ],
)
def test_geometries_that_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(st.permutations(range(1, 5)))
def test_layouts_name_the_axes(shape):
    for layout in ("NCHW", "NHWC"):
        assert lengths(layout, ordered(layout, *shape)) == tuple(shape)
    image = np.zeros(ordered("NCHW", *shape)).transpose(0, 2, 3, 1)
    assert image.shape == ordered("NHWC", *shape)
