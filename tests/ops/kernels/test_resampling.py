"""Where the pixels of a larger or smaller image come from."""

import numpy as np
import pytest

from synk.ops.kernels.resampling import Resampling


def taps(length, mode="bilinear", align_corners=False, size=None, scale=None):
    resampling = Resampling(size and (size, 1), scale and (scale, 1.0), mode, align_corners)
    first, second, weight = resampling.taps(np, 0, length)
    return first.tolist(), second.tolist(), weight.tolist()


def test_twice_as_many():
    assert taps(3, "nearest", scale=2.0)[0] == [0, 0, 1, 1, 2, 2]
    assert taps(2, scale=2.0) == ([0, 0, 0, 1], [1, 1, 1, 1], [0, 0.25, 0.75, 0.25])
    assert taps(2, align_corners=True, size=5) == ([0, 0, 0, 0, 1], [1] * 5, [0, 0.25, 0.5, 0.75, 0])


def test_corners_that_are_aligned_stay():
    for size in (1, 2, 7):
        first, _, weight = taps(4, align_corners=True, size=size)
        assert (first[0], weight[0]) == (0, 0)
        if size > 1:
            assert first[-1] + weight[-1] == 3


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_a_mean_of_places_keeps_a_slope(length):
    """A line of slope 1 has, at the centre of pixel i, the value (i + 0.5) * step - 0.5, clipped."""
    for size in range(1, 20):
        first, second, weight = map(np.array, taps(length, size=size))
        value = (1 - weight) * first + weight * second
        expected = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
        np.testing.assert_allclose(value, expected, atol=1e-12)


def test_what_keeps_its_length_keeps_its_pixels():
    assert taps(3, "nearest", scale=1.25)[0] == [0, 1, 2]
    assert taps(3, scale=1.25) == ([0, 1, 2], [1, 2, 2], [0, 0, 0])
    assert taps(2, "nearest", scale=2.3)[0] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None), "give a scale or a size, one of them"),
        (((2, 2), (2.0, 2.0)), "give a scale or a size, one of them"),
        (((0, 2), None), r"size=\(0, 2\) must be positive"),
        ((None, (-1.0, 2.0)), r"scale=\(-1.0, 2.0\) must be positive"),
        (((2, 2), None, "cubic"), "mode='cubic' is unknown; choose one of nearest, bilinear"),
        (((2, 2), None, "nearest", True), "align_corners=True has no meaning for mode"),
        (((2, 2), None, "nearest", False, "HW"), "layout='HW' is unknown"),
    ],
)
def test_what_is_no_geometry(arguments, message):
    with pytest.raises(ValueError, match=message):
        Resampling(*arguments)


def test_shapes():
    half = Resampling(None, (0.5, 2.5), layout="NHWC")
    assert half.output_shape((2, 5, 3, 4)) == (2, 2, 7, 4)
    assert half.image_shape((2, 2, 7, 4), 5, 3) == (2, 5, 3, 4)
    with pytest.raises(ValueError, match=r"gy has shape \(2, 3, 7, 4\); resampling gives \(2, 2, 7, 4\)"):
        half.image_shape((2, 3, 7, 4), 5, 3)
    with pytest.raises(ValueError, match="upsample2d: a height of 1 pixels .* gives 0 pixels; give images"):
        half.output_shape((2, 1, 3, 4))
    with pytest.raises(ValueError, match="a width of 0 pixels"):
        half.output_shape((2, 5, 0, 4))
