"""Forms in which arrays travel: packed, reduced as NCCL does, and unpacked, they are what NumPy has."""

import functools

import numpy as np
import pytest

from synk.gpu.comm.carrier import REDUCED, carrier_of, contiguous

AS_NCCL = {"avg": np.add, "sum": np.add, "prod": np.multiply, "min": np.fmin, "max": np.fmax}
AS_NUMPY = {"min": np.minimum, "max": np.maximum}


def reduced(arrays, op):
    """Reduce arrays as NCCL would, which multiplies before it adds and loses NaN."""
    carrier = carrier_of(op, arrays[0].dtype, len(arrays))
    packed = [carrier.pack(np, array) for array in arrays]
    assert all(flat.dtype == carrier.dtype for flat in packed)
    assert all(flat.ndim == 1 for flat in packed)
    assert carrier.dtype in REDUCED
    if carrier.op == "avg":
        packed = [flat * flat.dtype.type(1 / len(arrays)) for flat in packed]
    total = functools.reduce(AS_NCCL[carrier.op], packed)
    return carrier.unpack(np, total, arrays[0].shape)


SPECIAL = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, -np.nan, 1e-40, -1e-40, 3e38, -3e38]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_order_of_floats_holds_and_nan_wins(op, dtype):
    with np.errstate(all="ignore"):
        one, other = (array.astype(dtype) for array in np.meshgrid(SPECIAL, SPECIAL))
        expected = AS_NUMPY[op](one, other)
    result = reduced([one, other], op)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_keep_their_bits(dtype):
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 1000)).astype(dtype)
    for op, ufunc in AS_NUMPY.items():
        assert reduced([one, other], op).tobytes() == ufunc(one, other).tobytes()


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 7, 8, 12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_averages_have_the_bits_of_sum_over_number(n_ranks, dtype):
    rng = np.random.default_rng(n_ranks)
    arrays = [rng.normal(size=500).astype(dtype) for _ in range(n_ranks)]
    expected = functools.reduce(np.add, arrays) / np.dtype(dtype).type(n_ranks)
    assert reduced(arrays, "avg").tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore:overflow|invalid:RuntimeWarning")
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 7, 8, 12, 100])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_averages_of_finite_values_are_finite(n_ranks, dtype):
    largest = np.finfo(dtype).max
    term = np.array([largest, -largest, np.inf, -np.inf, np.nan, 0], dtype)
    result = reduced([term] * n_ranks, "avg")
    np.testing.assert_allclose(result, term, rtol=n_ranks * np.finfo(dtype).eps)
    assert np.isfinite(result[:2]).all()


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_integers_that_nccl_lacks_wrap_as_usual(dtype, op):
    arrays = [np.array([30000, 255, 7], dtype), np.array([30000, 257, 9], dtype)]
    with np.errstate(all="ignore"):
        expected = AS_NCCL[op](*arrays)
    assert reduced(arrays, op).tolist() == expected.tolist()


@pytest.mark.parametrize("op", ["prod", "min", "max"])
def test_booleans_stay_booleans(op):
    one, other = np.array([[True, True], [False, False]]), np.array([[True, False], [True, False]])
    result = reduced([one, other], op)
    assert result.dtype == bool
    assert result.tolist() == (one | other if op == "max" else one & other).tolist()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,), (3, 4)])
@pytest.mark.parametrize("dtype", ["complex64", "float16", "float32", "bool"])
def test_any_shape_comes_back(shape, dtype):
    op = "prod" if dtype == "bool" else "sum"
    result = reduced([np.ones(shape, dtype)], op)
    assert (result.shape, result.dtype) == (shape, dtype)


def test_what_needs_no_packing_is_not_copied():
    array = np.ones((3, 4), "float32")
    for op in ("avg", "sum", "prod"):
        assert np.shares_memory(carrier_of(op, array.dtype, 2).pack(np, array), array)
    assert contiguous(array) is array
    assert contiguous(array.T).flags.c_contiguous


def test_halves_are_carried_by_floats():
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    assert reduced([np.array([256], bfloat16)] + [np.array([0.5], bfloat16)] * 4, "sum").tolist() == [258]
    carrier = carrier_of("avg", bfloat16, 2)
    assert (carrier.dtype, carrier.op) == ("float32", "avg")


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("avg", "int32"), ("avg", "bool"), ("sum", "bool"), ("min", "complex64"), ("sum", "datetime64[s]")],
)
def test_what_cannot_be_reduced_is_refused(op, dtype):
    with pytest.raises(TypeError, match=r"has no|has dtype|cannot reduce|is boolean|is complex"):
        carrier_of(op, np.dtype(dtype), 2)


def test_nccl_has_no_product_of_complex_numbers():
    assert carrier_of("prod", np.dtype("complex64"), 2) is None
