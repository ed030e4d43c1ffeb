"""A first look at the GPU: the rest can only work if this does. `test_real_cupy` holds CuPy's names."""

from importlib.util import find_spec

import numpy as np
import pytest

from support.cupy.array_modules import ON_A_GPU
from synk.gpu.kernels import cudnn

pytestmark = ON_A_GPU


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def test_cudnn_serves_where_its_front_end_is_installed(cupy):
    """Else convolutions would be matrix products, and tests of cuDNN skipped."""
    if find_spec("cudnn") is None:
        pytest.skip("nvidia-cudnn-frontend is not installed")
    assert cudnn.available(), cudnn.reason()
    assert cudnn.serves(cupy)


def test_arrays_go_to_the_device_and_back(cupy):
    values = np.arange(12.0).reshape(3, 4)
    there = cupy.asarray(values)
    assert type(there) is cupy.ndarray
    np.testing.assert_array_equal(cupy.asnumpy(there), values)
    np.testing.assert_array_equal((there @ there.T).get(), values @ values.T)
    assert type(cupy.exp).__name__ == "ufunc"


@pytest.mark.parametrize(
    "way",
    [np.asarray, lambda array: np.ones(3) + array, lambda array: array + np.ones(3)],
)
def test_silent_transfers_are_refused_as_by_the_stand_in(cupy, way):
    with pytest.raises(TypeError):
        way(cupy.arange(3.0))


def test_a_kernel_of_our_own_runs(cupy):
    kernel = cupy.RawModule(code=SOURCE, options=("-std=c++17",)).get_function("twice")
    x = cupy.arange(1000, dtype="float32")
    kernel((4,), (256,), (x, np.int32(x.size)))
    np.testing.assert_array_equal(x.get(), 2 * np.arange(1000))


SOURCE = """
extern "C" __global__ void twice(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}
"""
