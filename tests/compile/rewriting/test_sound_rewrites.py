import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.scan import until
from pytensor.tensor.math import Sum

from synk.compile import ArrayLinker, array_mode, without_wrong
from synk.compile.rewriting.wrong_rewrites import release_of

PLAIN = Mode("py", "fast_run")
RELEASE = release_of(pytensor.__version__)
A = np.arange(4.0).reshape(2, 2)
K = np.array([[100, 200], [300, 400]])


def sum_with_integers():
    k, z, a = pt.lmatrix("k"), pt.dmatrix("z"), pt.dmatrix("a")
    return [k, z, a], k + (z - 0.25 * (a @ a)), [K, A, A], K + (A - 0.25 * (A @ A))


def sum_with_truth_values():
    k, z, a = pt.matrix("k", dtype="bool"), pt.dmatrix("z"), pt.dmatrix("a")
    return [k, z, a], z + (a @ a) + k, [K > 150, A, A], A + A @ A + (K > 150)


def sum_with_scaled_float32():
    k, c, z, a = pt.fmatrix("k"), pt.dscalar("c"), pt.dmatrix("z"), pt.dmatrix("a")
    return [k, c, z, a], z + 0.5 * (a @ a) - c * k, [K.astype("f"), 2.0, A, A], A + 0.5 * (A @ A) - 2.0 * K


def sum_of_vectors_with_integers():
    k, z, a = pt.lvector("k"), pt.dvector("z"), pt.dmatrix("a")
    return [k, z, a], z + 0.5 * (a @ z) + k, [K[0], A[1], A], A[1] + 0.5 * (A @ A[1]) + K[0]


def not_a_number():
    x = pt.dvector("x")
    return [x], pt.neq(x, x), [np.array([1, np.nan])], np.array([False, True])


def at_least_itself():
    x = pt.dvector("x")
    return [x], pt.ge(x, x), [np.array([1, np.nan])], np.array([True, False])


def repeated_bytes():
    x = pt.bvector("x")
    return [x], pt.alloc(x, 3, 2).sum(0), [np.array([100, 2], "int8")], np.array([300, 6])


def counted(read):
    """Return a case: the loop counts to 5 from 0, where 10 steps would be allowed."""

    def case():
        x = pt.dscalar("x")
        rows = pytensor.scan(
            lambda x: (x + 1, until(x > 3)), outputs_info=[x], n_steps=10, return_updates=False
        )
        return [x], read(rows), [0.0], read(np.arange(1.0, 6))

    case.__name__ = "rows_of_a_loop_that_ends_early"
    return case


SUMS = [sum_with_integers, sum_with_truth_values, sum_with_scaled_float32, sum_of_vectors_with_integers]
COMPARISONS = [not_a_number, at_least_itself]
READS = [lambda y: y[1:], lambda y: y[-7:], lambda y: y[2:4], lambda y: y[-1], lambda y: y[-1:], lambda y: y]
LOOPS = [counted(read) for read in READS]


def computed(case, mode):
    inputs, output, values, _ = case()
    return pytensor.function(inputs, output, mode=mode)(*values)


@pytest.mark.parametrize("case", [*SUMS, *COMPARISONS, repeated_bytes, *LOOPS])
def test_the_numbers_are_numpys(case):
    np.testing.assert_allclose(computed(case, array_mode()), case()[-1], rtol=1e-12)


STILL_WRONG = [*SUMS, *COMPARISONS, *LOOPS[:3], *([repeated_bytes] if RELEASE >= (3, 1, 1) else [])]


@pytest.mark.slow
@pytest.mark.parametrize("case", STILL_WRONG)
def test_pytensor_alone_is_still_wrong(case):
    """Where this fails, a release has mended its rewrite, and what stands in for it can go."""
    found, expected = np.asarray(computed(case, PLAIN)), np.asarray(case()[-1])
    assert found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-12)


# Sums, products and reductions of narrow integers: each wraps in the dtype that it declares.
BYTES = np.array([[-128, 127, 3], [5, 127, -1], [100, -128, 64], [7, 2, -77]])
NARROW = {
    "sum_of_multiples": lambda x: (x * np.array(3, x.dtype)).sum(),
    "sum_of_products": lambda x: (x * x[0, 0]).sum(axis=0),
    "sum_of_negatives": lambda x: (-x).sum(),
    "mean_of_multiples": lambda x: (x * np.array(3, x.dtype)).mean(axis=0),
    "product_of_multiples": lambda x: (x * np.array(3, x.dtype)).prod(),
    "sum_of_narrow_sums": lambda x: x.sum(axis=0, dtype=x.dtype).sum(),
    "mean_of_narrow_sums": lambda x: x.sum(axis=0, dtype=x.dtype).mean(),
    "product_of_narrow_products": lambda x: x.prod(axis=0, dtype=x.dtype).prod(),
    "half_of_doubles": lambda x: (x * np.array(2, x.dtype)) / 2.0,
    "half_of_negatives": lambda x: (-x) / 2.0,
    "half_of_a_sum": lambda x: (x + np.array(100, x.dtype)) / 2.0,
    "difference_from_a_narrow_sum": lambda x: (x + x[0, 1]) - 1.5,
    "two_narrow_terms": lambda x: 1.5 - x - x[::-1],
    "two_narrow_divisors": lambda x: 1.5 / (x | 1) / (x[::-1] | 1),
    "difference_from_negatives": lambda x: np.int64(1000) - (-x),
    "multiple_of_negatives": lambda x: np.int64(1000) * (-x),
    "magnitude_of_multiples": lambda x: abs(np.int64(1000) * x),
    "product_of_magnitudes": lambda x: abs(x) * abs(x[::-1]),
}
FLOATS = {
    "root_of_squares": lambda m, x: m.sqrt(x * x),
    "logarithm_of_one_more": lambda m, x: m.log(x + np.array(1, x.dtype)),
    "product_of_exponentials": lambda m, x: m.exp(x) * m.exp(x[::-1]),
    "quotient_of_exponentials": lambda m, x: m.exp(x[::-1]) / m.exp(x),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_narrow_integers_wrap_where_they_are_computed(dtype):
    x, value = pt.matrix("x", dtype=dtype), BYTES.astype(dtype)
    found = pytensor.function([x], [case(x) for case in NARROW.values()], mode=array_mode())(value)
    for name, one in zip(NARROW, found, strict=True):
        np.testing.assert_allclose(one, NARROW[name](value), rtol=1e-5, err_msg=name)


def test_functions_of_narrow_integers_are_of_what_those_wrap_to():
    x, value = pt.matrix("x", dtype="int8"), np.array([[3, 127, 5, 64], [2, 120, 100, 60]], "int8")
    outputs = [case(pt, x) for case in FLOATS.values()]
    found, expected = (
        pytensor.function([x], outputs, mode=mode)(value) for mode in (array_mode(), Mode("py", None))
    )
    for name, one, other in zip(FLOATS, found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, err_msg=name)


@pytest.mark.filterwarnings("error")
def test_negatives_of_unsigned_integers_wrap_as_numpys():
    x, value = pt.matrix("x", dtype="uint8"), BYTES.astype("uint8")
    found = pytensor.function([x], [-x, -(-x).max()], mode=array_mode())(value)
    np.testing.assert_array_equal(found[0], -value)
    np.testing.assert_array_equal(found[1], np.negative((-value).max(keepdims=True))[0, 0])


def test_a_mode_of_the_script_wraps_narrow_integers_too():
    x, value = pt.matrix("x", dtype="int8"), BYTES.astype("int8")
    function = pytensor.function([x], [(-x).sum(), (-x) / 2.0], mode=without_wrong(PLAIN.excluding("fusion")))
    np.testing.assert_array_equal(function(value)[0], (-value).sum())
    np.testing.assert_array_equal(function(value)[1], -value / 2.0)


def test_a_multiple_of_floats_is_still_summed_first():
    x = pt.dvector("x")
    nodes = pytensor.function([x], (x * 3).sum(), mode=without_wrong(PLAIN)).maker.fgraph.toposort()
    assert isinstance(nodes[0].op, Sum)


def test_a_product_in_a_sum_of_its_own_dtype_is_still_one_gemm():
    z, a = pt.dmatrix("z"), pt.dmatrix("a")
    function = pytensor.function([z, a], z + 2 * (a @ a), mode=array_mode())
    assert "Gemm" in [type(node.op).__name__ for node in function.maker.fgraph.toposort()]


def test_a_product_with_a_mask_is_not_cast():
    z, a = pt.fmatrix("z"), pt.fmatrix("a")
    function = pytensor.function([z, a], z + (a @ a) * (z > 0), mode=array_mode(ArrayLinker(native=False)))
    assert "Cast" not in function.vm.jit_fn.source


def test_what_scales_a_product_in_a_difference_is_no_unsigned_integer():
    z, a, scale = pt.dmatrix("z"), pt.dmatrix("a"), pt.bscalar("scale").astype("uint8")
    inputs, values = [z, a, scale.owner.inputs[0]], [np.ones((2, 2)), np.eye(2), np.int8(3)]
    found = pytensor.function(inputs, z - scale * (a @ a), mode=array_mode())(*values)
    np.testing.assert_array_equal(found, np.ones((2, 2)) - 3 * np.eye(2))


def test_a_loop_that_is_read_at_its_end_keeps_few_rows():
    inputs, output, _, _ = counted(lambda rows: rows[-1])()
    nodes = pytensor.function(inputs, output, mode=array_mode()).maker.fgraph.toposort()
    buffers = [node.inputs[0].data for node in nodes if type(node.op).__name__ == "AllocEmpty"]
    assert all(rows <= 2 for rows in buffers)
