"""The descriptors of arrays that cuDNN gets, and which engines it may choose."""

import numpy as np
import pytest
from hypothesis import given

from support.cases.images import convolutions
from synk.gpu.kernels.cudnn import descriptor
from synk.gpu.kernels.cudnn.cudnn_plan import NEVER, TF32_ENGINES, refused
from synk.gpu.kernels.cudnn.descriptor import BIAS, IMAGE, RESULT, WEIGHTS
from synk.ops.kernels.window import Convolution, Window

STRIDED = Convolution(Window(None, (2, 1)), 2, "NHWC")


@given(convolutions())
def test_strides_lead_to_the_elements(case):
    convolution, x, w, y = case
    stated = descriptor.forward(convolution, x, w, dtype="float64")
    assert stated.result == y
    for uid, shape in ((IMAGE, x), (WEIGHTS, w), (RESULT, y)):
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        named, lengths, strides = stated.tensor(uid)
        last = uid != WEIGHTS and convolution.layout == "NHWC"
        expected = array.transpose(0, 3, 1, 2) if last else array
        assert named == uid
        assert lengths == expected.shape
        if array.size:
            seen = np.lib.stride_tricks.as_strided(array, lengths, [8 * stride for stride in strides])
            np.testing.assert_array_equal(seen, expected)


def test_arrays_of_each_operation():
    forward = descriptor.forward(STRIDED, (2, 9, 8, 4), (6, 2, 3, 1), dtype="float32", has_bias=True)
    assert (forward.inputs, forward.target) == ((IMAGE, WEIGHTS, BIAS), RESULT)
    assert forward.shape(RESULT) == (2, 4, 8, 6)
    assert forward.tensor(BIAS) == (BIAS, (1, 6, 1, 1), (6, 1, 6, 6))
    images = descriptor.input_gradient(STRIDED, (2, 4, 8, 6), (6, 2, 3, 1), 10, 8, dtype="float32")
    assert (images.inputs, images.target, images.shape(IMAGE)) == ((RESULT, WEIGHTS), IMAGE, (2, 10, 8, 4))
    weights = descriptor.weight_gradient(STRIDED, (2, 9, 8, 4), (2, 4, 8, 6), 3, 1, dtype="float32")
    assert (weights.inputs, weights.target) == ((IMAGE, RESULT), WEIGHTS)
    assert weights.shape(WEIGHTS) == (6, 2, 3, 1)
    assert not forward.is_empty
    assert descriptor.forward(STRIDED, (0, 9, 8, 4), (6, 2, 3, 1), dtype="float32").is_empty


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("tf32", [False, True])
def test_tensor_cores_are_refused_for_float32_alone(dtype, tf32):
    stated = descriptor.forward(STRIDED, (2, 9, 8, 4), (6, 2, 3, 1), dtype=dtype, tf32=tf32)
    assert (TF32_ENGINES in refused(stated)) == (dtype == "float32" and not tf32)
    assert {*NEVER} <= {*refused(stated)}
