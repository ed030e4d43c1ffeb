"""cuDNN's convolutions on a GPU, against the definitions of the Ops. Has not run yet."""

from importlib import import_module

import numpy as np
import pytest

from support.cases.images import Refuses, node_of, normal, perform
from synk.compile.dispatch import array_funcify
from synk.gpu.kernels.cudnn import CuDnn, available, reason
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.kernels.choose import convolution_kernels
from synk.ops.kernels.window import LAYOUTS, Convolution, Window, ordered

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not available(), reason=reason())]

WINDOWS = {
    "3 x 3": (Window(None, padding=((1, 1), (1, 1))), 1),
    "strided": (Window(None, (2, 1), ((1, 0), (2, 1))), 1),
    "groups": (Window(None, (1, 1), ((2, 2), (2, 2)), (2, 2)), 4),
}
# Relative to the largest element: products are sums of some hundred terms.
ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.delenv("CUPY_TF32", raising=False)
    return import_module("cupy")


def cases(name, layout):
    """Return the Op and the arrays of each operation."""
    window, groups = WINDOWS[name]
    convolution = Convolution(window, groups, layout)
    x, w = ordered(layout, 4, 32, 17, 15), (48, 32 // groups, 3, 3)
    y = convolution.output_shape(x, w)
    x, w, y, bias = (normal(shape, seed) for seed, shape in enumerate((x, w, y, w[:1])))
    return [
        (Conv2d(convolution, True), x, w, bias),
        (Conv2dInputGradient(convolution), y, w, 17, 15),
        (Conv2dWeightGradient(convolution), x, y, 3, 3),
    ]


def run(kernels, op, arrays):
    convolution = op.convolution
    if isinstance(op, Conv2d):
        return kernels.forward(convolution, True, True)(*arrays)
    is_image = isinstance(op, Conv2dInputGradient)
    return (kernels.input_gradient if is_image else kernels.weight_gradient)(convolution)(*arrays)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_every_operation(cupy, dtype, name, layout):
    kept = import_module("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    for op, *values in cases(name, layout):
        rounded = [v.astype(kept) if np.ndim(v) else v for v in values]
        exact = perform(op, *[v.astype("float64") if np.ndim(v) else v for v in rounded])[0]
        arrays = [cupy.asarray(v) if np.ndim(v) else v for v in rounded]
        for _ in range(2):
            result = cupy.asnumpy(run(CuDnn(cupy, Refuses()), op, arrays)).astype("float64")
            assert np.abs(result - exact).max() <= ROUNDING[dtype] * np.abs(exact).max()


def test_the_same_bits_twice(cupy):
    for op, *values in cases("3 x 3", "NHWC"):
        arrays = [cupy.asarray(v.astype("float32")) if np.ndim(v) else v for v in values]
        first, second = (cupy.asnumpy(run(CuDnn(cupy, Refuses()), op, arrays)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


def test_tf32_is_one_switch(cupy, monkeypatch):
    for op, *values in cases("3 x 3", "NHWC"):
        exact = perform(op, *values)[0]
        arrays = [cupy.asarray(v.astype("float32")) if np.ndim(v) else v for v in values]
        errors = []
        for switch in "01":
            monkeypatch.setenv("CUPY_TF32", switch)
            result = cupy.asnumpy(run(CuDnn(cupy, Refuses()), op, arrays))
            errors.append(np.abs(result - exact).max() / np.abs(exact).max())
        assert errors[0] < 1e-5 < errors[1] < 1e-2


def test_parts_of_a_flat_vector_at_any_element(cupy):
    for op, *values in cases("groups", "NCHW"):
        exact = perform(op, *values)[0]
        arrays = [cupy.asarray(v.astype("float32")) if np.ndim(v) else v for v in values]
        flat = cupy.zeros(exact.size + 2, "float32")
        out = flat[1:-1].reshape(exact.shape)
        implementation = array_funcify(op, node_of(op, *values), cupy)
        assert implementation(*arrays, out=out) is out
        assert float(flat[0]) == float(flat[-1]) == 0
        assert np.abs(cupy.asnumpy(out) - exact).max() <= 1e-5 * np.abs(exact).max()


def test_the_program_takes_cudnn(cupy):
    assert isinstance(convolution_kernels(cupy, "float32"), CuDnn)
