"""Normalisation in array operations, on a module that is as strict as one of a GPU.

That the numbers are right is held by the tests of the loops, which run on both.
"""

import numpy as np
import pytest

from support.cases import norms as cases
from support.cuda.provider import OnHost
from support.cupy import stand_in
from synk.ops.kernels.plain_norm import PlainNorm

numpy, device = PlainNorm(np), OnHost(PlainNorm(stand_in))  # which sees that nothing travels


@pytest.mark.parametrize("name", cases.KERNELS)
def test_a_device_gives_the_numbers_of_numpy_and_inputs_are_not_written_to(name):
    kernels = cases.KERNELS[name]
    for (run, inputs), (run_there, _) in zip(kernels(numpy), kernels(device), strict=True):
        for array in inputs:
            array.flags.writeable = False
        values, expected = map(cases.listed, (run_there(*inputs), run(*inputs)))
        for value, wanted in zip(values, expected, strict=True):
            assert value.dtype == wanted.dtype
            np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6)


def test_a_wrong_label_makes_nan_on_a_device():
    _, logits, _, _ = cases.batch(0, (3, 3), "NCHW", "float32")
    losses, _ = device.softmax_cross_entropy()(logits, np.array([0, 3, -1]))
    assert np.isnan(losses).tolist() == [False, True, True]
