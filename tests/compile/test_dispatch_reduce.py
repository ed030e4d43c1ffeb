import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import array_mode

DTYPES = ["float32", "float64", "int8", "uint8", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2), (1, 2)])
def test_reductions(compare, dtype, axis):
    x = pt.tensor3("x", dtype=dtype)
    value = np.random.default_rng(0).uniform(0, 3, (3, 4, 5)).astype(dtype)
    outputs = [pt.sum(x, axis), pt.prod(x, axis), pt.all(x, axis), pt.any(x, axis)]
    if dtype != "bool":
        outputs += [
            pt.max(x, axis),
            pt.min(x, axis),
            pt.mean(x, axis),
            pt.argmax(x, axis),
            pt.argmin(x, axis),
        ]
    compare([x], outputs, [value], rtol=1e-5)


def test_requested_dtypes(compare):
    x = pt.matrix("x", dtype="float32")
    value = np.random.default_rng(0).random((3, 4), dtype="float32")
    outputs = [
        x.sum(dtype="float64"),
        x.sum(0, acc_dtype="float32"),
        x.prod(1, dtype="float64"),
        pt.sum(x > 0.5),
    ]
    compare([x], outputs, [value])


def test_no_rows(compare):
    x = pt.matrix("x")
    compare([x], [x.sum(), x.sum(0), x.prod(0), pt.all(x > 0), pt.max(x, 1)], [np.zeros((0, 3), x.dtype)])


def test_max_of_nothing_is_an_error():
    x = pt.vector("x")
    with pytest.raises(ValueError, match="zero-size"):
        pytensor.function([x], x.max(), mode=array_mode())(np.zeros(0, x.dtype))


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("order", ["C", "F"])
def test_float32_sums_are_accurate(axis, order):
    x = pt.matrix("x", dtype="float32")
    shape = (200_000, 3) if axis == 0 else (3, 200_000)
    value = np.asarray(np.random.default_rng(0).random(shape, dtype="float32"), order=order)
    exact = value.sum(axis, dtype="float64")
    result = pytensor.function([x], x.sum(axis), mode=array_mode())(value)
    assert result.dtype == "float32"
    # One by one in float32 the error is about 1e-4.
    np.testing.assert_allclose(result, exact, rtol=5e-7)


def test_products_accumulate_in_the_declared_dtype(compare):
    x = pt.vector("x", dtype="float32")
    compare([x], [x.prod()], [np.array([1e30, 1e30, 1e-30, 1e-30], "float32")])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_running_sums(compare, axis, dtype):
    x = pt.matrix("x", dtype=dtype)
    compare([x], [pt.cumsum(x, axis), pt.cumprod(x, axis)], [np.arange(1, 7).reshape(2, 3).astype(dtype)])
