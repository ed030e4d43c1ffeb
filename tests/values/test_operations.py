import numpy as np
import pytest

from support.reductions import DTYPES, FLOATS, INTEGERS, LEGAL, combine
from synk.values.accumulator import PartialResult
from synk.values.operations import OPERATIONS, accumulating_dtype, check_mode, check_operation, identity

ILLEGAL = [(op, dtype) for dtype in DTYPES for op in OPERATIONS if (op, dtype) not in LEGAL]


def test_accumulating_dtypes():
    assert accumulating_dtype("float16") == np.float32
    for dtype in set(DTYPES) - {"float16"}:
        assert accumulating_dtype(dtype) == np.dtype(dtype)


@pytest.mark.parametrize(("op", "dtype"), [case for case in LEGAL if case[0] != "avg"])
def test_identity_changes_nothing(op, dtype):
    values = (np.random.default_rng(2).normal(size=(3, 4)) * 4).astype(dtype)
    nothing = identity(op, values)
    assert nothing.dtype == values.dtype
    assert nothing.shape == values.shape
    np.testing.assert_array_equal(combine(op, [PartialResult(nothing, 0), PartialResult(values, 1)]), values)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_identity_of_extremes_leaves_extremes(dtype):
    if dtype in FLOATS:
        extremes = np.array([-np.inf, np.inf], dtype)
    elif dtype == "bool":
        extremes = np.array([False, True])
    else:
        extremes = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    np.testing.assert_array_equal(np.minimum(identity("min", extremes), extremes), extremes)
    np.testing.assert_array_equal(np.maximum(identity("max", extremes), extremes), extremes)


def test_other_identities():
    for dtype in DTYPES:
        values = np.ones((3, 2), dtype)
        # No rows leave an average, and the last value, as they were.
        assert identity("avg", values) is None
        assert identity(None, values) is None
        joined = identity("gather", values)
        assert (joined.shape, joined.dtype) == ((0, 2), values.dtype)
        assert np.ndim(identity("sum", np.array(3, dtype))) == 0


def test_what_has_a_meaning_is_allowed():
    for op, dtype in LEGAL:
        assert check_operation(op, dtype, "output 0") == op
        assert check_mode(op, dtype, "output 0") == op
        assert check_mode(f"c_{op}", dtype, "output 0") == op


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_has_no_meaning_is_refused(op):
    for dtype in (dtype for illegal, dtype in ILLEGAL if illegal == op):
        for check in (check_operation, check_mode):
            with pytest.raises(TypeError, match=f'output 0 .*"{op}"'):
                check(op, dtype, "output 0")
        with pytest.raises(TypeError, match=f'output 0 .*"{op}"'):
            check_mode(f"c_{op}", dtype, "output 0")


def test_the_illegal_are_these():
    kinds = {(op, np.dtype(dtype).kind) for op, dtype in ILLEGAL}
    assert kinds == {("avg", "i"), ("avg", "u"), ("avg", "b"), ("sum", "b"), ("min", "c"), ("max", "c")}


def test_gather_and_none_have_a_meaning_for_every_dtype():
    for dtype in DTYPES:
        assert check_mode("gather", dtype, "output 0") == "gather"
        assert check_mode("c_gather", dtype, "output 0") == "gather"
        assert check_mode(None, dtype, "output 0") is None


@pytest.mark.parametrize("op", ["mean", "AVG", "", "gather", None, 3, ["sum"]])
def test_other_operations_are_refused(op):
    with pytest.raises(ValueError, match="is not a reduce operation; use one of avg, sum, prod, min, max"):
        check_operation(op, "float32", "variable 'w'")


@pytest.mark.parametrize("mode", ["mean", "c_", "c_None", "c_c_sum", "", 3, ["sum"]])
def test_other_modes_are_refused_with_their_name(mode):
    with pytest.raises(ValueError, match="output 2; use one of 'avg', .*'gather', None") as caught:
        check_mode(mode, "float32", "output 2")
    assert repr(mode) in str(caught.value)


def test_only_arrays_can_be_reduced():
    assert check_mode(None, None, "update of the generator") is None
    for mode in ("sum", "gather", "c_avg"):
        with pytest.raises(TypeError, match=f"update of the generator is not an array.*'{mode}'; use None"):
            check_mode(mode, None, "update of the generator")
