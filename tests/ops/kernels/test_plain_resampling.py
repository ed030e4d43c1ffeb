"""Changes of size in array operations, on a module that is as strict as one of a GPU.

That the numbers are right is held by the tests of the loops, which run on both.
"""

import numpy as np
import pytest

from support.cases.images import normal
from support.cuda.provider import OnHost
from support.cupy import stand_in
from synk.ops.kernels.plain_resampling import PlainResampling
from synk.ops.kernels.resampling import Resampling

numpy, device = PlainResampling(np), OnHost(PlainResampling(stand_in))  # which sees that nothing travels


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_device_gives_the_numbers_of_numpy(mode, layout):
    resampling = Resampling((7, 3), None, mode, layout=layout)
    x = normal((2, 4, 5, 3))
    y = numpy.resample(resampling)(x)
    np.testing.assert_allclose(device.resample(resampling)(x), y, rtol=1e-12)
    sides = x.shape[2:] if layout == "NCHW" else x.shape[1:3]
    gx = numpy.resample_gradient(resampling)(y, *sides)
    there = device.resample_gradient(resampling)(y, *sides)
    np.testing.assert_allclose(there, gx, rtol=1e-12, atol=1e-12)


def test_edges_on_a_device():
    x = normal((2, 4, 5, 3))
    for run in (lambda on: on.crop("NHWC")(x, 1, 2, 3, 2), lambda on: on.pad(7.0, "NCHW")(x, 1, 2, 8, 9)):
        np.testing.assert_array_equal(run(device), run(numpy))
