import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import scalar
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Max, Min, ProdWithoutZeros

from support.slow import slow
from synk.compile import array_mode
from synk.compile.dispatch.reduce import deliver

DTYPES = ["float32", slow("float64"), "int8", *map(slow, ["uint8", "int64"]), "bool"]


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


@pytest.mark.parametrize("dtype", ["int8", *map(slow, ["uint8", "int64"]), "bool"])
@pytest.mark.parametrize("axis", [None, (0,), (1,), (0, 2), ()])
def test_bits(compare, dtype, axis):
    x = pt.tensor3("x", dtype=dtype)
    value = np.random.default_rng(0).integers(0, 100, (3, 4, 5)).astype(dtype)
    bits = [CAReduce(op, axis)(x) for op in (scalar.and_, scalar.or_, scalar.xor)]
    numbers = [CAReduce(op, axis)(x) for op in (scalar.add, scalar.mul)]
    compare([x], bits + numbers, [value])


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_bits_of_any_number_of_rows(compare, rows):
    x = pt.matrix("x", dtype="uint8")
    value = np.random.default_rng(0).integers(0, 255, (rows, 3)).astype("uint8")
    compare([x], [CAReduce(op, (0,))(x) for op in (scalar.and_, scalar.or_, scalar.xor)], [value])


def test_products_without_zeros(compare):
    x = pt.dmatrix("x")
    value = np.array([[2.0, 0, 3], [0, 0, 0], [5, 7, 1]])
    compare([x], [ProdWithoutZeros((1,))(x), ProdWithoutZeros()(x), pt.grad(pt.prod(x, 1).sum(), x)], [value])


@pytest.mark.skipif(not hasattr(Max, "initial_value"), reason="this PyTensor has no initial values")
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_extremes_with_an_initial_value(compare, dtype):
    x = pt.matrix("x", dtype=dtype)
    for rows in (0, 2):
        value = np.full((rows, 3), -5).astype(dtype)
        compare([x], [op((0,), initial=True)(x) for op in (Max, Min)], [value])


def test_numbers(compare):
    x, n, b = pt.fscalar("x"), pt.lscalar("n"), pt.scalar("b", dtype="bool")
    outputs = [op(v) for v in (x, n) for op in (pt.sum, pt.prod, pt.max, pt.min)]
    outputs += [pt.all(b), pt.any(b), CAReduce(scalar.xor)(n)]
    compare([x, n, b], outputs, [np.asarray(1.5, "float32"), np.asarray(3), np.asarray(True)])


@pytest.mark.parametrize("dtype", ["float16", "complex64", "complex128"])
def test_rare_dtypes(compare, dtype):
    x = pt.matrix("x", dtype=dtype)
    value = np.random.default_rng(0).random((40, 3)).astype(dtype)
    compare([x], [x.sum(0), x.sum(), x.prod(1), x.sum(1, acc_dtype=dtype)], [value], rtol=2e-3)


@pytest.mark.parametrize("axis", [slow(None), 0, -1])
@pytest.mark.parametrize("dtype", ["float32", slow("float64")])
def test_softmax_and_its_gradient(compare, axis, dtype):
    x = pt.matrix("x", dtype=dtype)
    p, q = pt.special.softmax(x, axis), pt.special.log_softmax(x, axis)
    outputs = [p, q, pt.grad((p**2).sum(), x), pt.grad((q[0] * x[1]).sum(), x), pt.logsumexp(x, axis=1)]
    value = np.random.default_rng(0).normal(size=(3, 4)).astype(dtype)
    compare([x], outputs, [value], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("shape", [slow((0, 4)), (3, 0)])
def test_softmax_of_nothing_is_empty(axis, shape):
    x = pt.matrix("x", dtype="float32")
    outputs = [pt.special.softmax(x, axis), pt.special.log_softmax(x, axis)]
    for found in pytensor.function([x], outputs, mode=array_mode())(np.zeros(shape, "float32")):
        assert (found.shape, found.dtype) == (shape, "float32")


def test_large_inputs_do_not_overflow():
    x = pt.vector("x", dtype="float32")
    outputs = [pt.special.softmax(x), pt.special.log_softmax(x)]
    p, q = pytensor.function([x], outputs, mode=array_mode())(np.array([1e4, 0, -1e4], "float32"))
    np.testing.assert_allclose(p, [1, 0, 0])
    np.testing.assert_allclose(q, [0, -1e4, -2e4])


def test_deliver():
    total = np.arange(3.0)
    assert deliver(total, "float64") is total
    assert deliver(total, "float32").dtype == "float32"
    out = np.zeros(3, "float32")
    assert deliver(total, "float32", out) is out
    assert out.tolist() == [0, 1, 2]
