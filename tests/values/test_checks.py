"""Wrong values are refused with errors that name the remedy; no run is open."""

import re

import numpy as np
import pytest

from synk.values.checks import as_array, checked_count, checked_flag, may_be_equal, plain, why_refused

MASKED = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])


class Sparse:
    """The attributes that tell a sparse matrix of any library."""

    def tocsr(self):
        return self


def test_masks_are_not_lost():
    with pytest.raises(TypeError, match=r"'x' is a masked array, 1 of 3 values masked, .*value\.filled"):
        plain(MASKED, "'x'")
    np.testing.assert_array_equal(as_array(MASKED.filled(0), "'x'"), [1, 0, 3])
    np.testing.assert_array_equal(as_array(np.ma.masked_array([1.0, 2.0]), "'x'"), [1, 2])


def test_sparse_matrices_are_named():
    with pytest.raises(TypeError, match=r"'x' is sparse \(Sparse\); pass dense rows: value\.toarray\(\)"):
        as_array(Sparse(), "'x'")


class Exchanged:
    """An array that has DLPack alone, on a device of this kind."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


def test_an_array_of_dlpack_alone_is_taken_as_it_is():
    values = np.arange(6.0).reshape(3, 2)
    taken = plain(Exchanged(values), "'x'")
    np.testing.assert_array_equal(taken, values)
    assert np.shares_memory(taken, values)
    np.testing.assert_array_equal(as_array(Exchanged(values[:, 0]), "'x'"), [0, 2, 4])


class OnDevice:
    """The attributes that tell an array on a GPU."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (3,), "typestr": "<f8", "data": (0, False), "version": 3}


@pytest.mark.parametrize("value", [Exchanged(np.zeros(3), device=2), OnDevice()])
def test_an_array_on_a_device_is_named_with_the_way_to_the_host(value):
    with pytest.raises(TypeError, match=r"'x' is in the memory of a device \(.*\).*value\.get\(\) in CuPy"):
        plain(value, "'x'")


@pytest.mark.parametrize("error", [BufferError("no such dtype"), KeyError("dtype"), OSError("gone")])
def test_a_dlpack_that_numpy_does_not_know_is_named(error):
    class Unknown(Exchanged):
        def __dlpack__(self, **options):
            raise error

    said = re.escape(f"'x' is no array of NumPy's (Unknown): {type(error).__name__}: {error}")
    with pytest.raises(TypeError, match=said) as caught:
        plain(Unknown(np.zeros(3)), "'x'")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("device", ["cpu", None, ()])
def test_a_device_that_is_no_number_is_named(device):
    class Elsewhere(Exchanged):
        def __dlpack_device__(self):
            return device

    with pytest.raises(TypeError, match=r"'x' is no array of NumPy's \(Elsewhere\): \w+Error: "):
        plain(Elsewhere(np.zeros(3)), "'x'")


def test_ragged_rows_are_no_array():
    with pytest.raises(ValueError, match="'x' is no array: .*inhomogeneous"):
        as_array([[1, 2], [3]], "'x'")


RECORDS = np.zeros(3, dtype=[("a", "f8"), ("b", "f8")])
REFUSED = [
    (
        np.zeros(3),
        "float32",
        "float32, the value is ndarray of dtype float64, which loses precision .*cast it",
    ),
    ([1.5], "int64", r"int64, the value is list of dtype float64, .*np\.asarray\(value, dtype='int64'\)"),
    (np.zeros(3, complex), "float64", r"complex128, .*pass value\.real"),
    (np.zeros(3, object), "float64", "object; convert it to numbers"),
    ({"a": 1}, "float64", "dict of dtype object"),
    (None, "float64", "NoneType of dtype object"),
    (["a"], "float64", r"list of dtype <U1; turn text .*np\.unique"),
    (np.array([b"a"]), "float64", r"dtype \|S1; turn text"),
    (np.zeros(3, "M8[D]"), "float64", r"datetime64\[D\]; .*\(value - start\) / np\.timedelta64"),
    (np.zeros(3, "m8[D]"), "float64", r"timedelta64\[D\]; .*value / np\.timedelta64"),
    (RECORDS, "float64", "one field of it"),
    (np.zeros((2, 2)), "float64", r"'x' has 1 dimensions, the value has 2 \(shape \(2, 2\)\)"),
]


@pytest.mark.parametrize(("value", "dtype", "reason"), REFUSED)
def test_reasons_name_both_dtypes_and_a_remedy(value, dtype, reason):
    said = why_refused(value, dtype, (None,), "'x'")
    assert re.search(reason, said), said
    assert "allow_input_downcast" not in said


REMEDIES = [
    (lambda value: np.unique(value, return_inverse=True)[1], np.array(["b", "a", "b"])),
    (lambda value: (value - value[0]) / np.timedelta64(1, "s"), np.array(["2020-01-01"], "M8[D]")),
    (lambda value: value / np.timedelta64(1, "s"), np.zeros(2, "m8[D]")),
    (lambda value: value["a"], RECORDS),
    (lambda value: np.column_stack([value["a"], value["b"]]), RECORDS),
    (lambda value: np.asarray(value, dtype="float64"), np.array([1, None], object)),
    (lambda value: value.real, np.zeros(2, complex)),
]


@pytest.mark.parametrize(("mend", "value"), REMEDIES)
def test_remedies_work(mend, value):
    assert mend(value).dtype.kind in "if"


@pytest.mark.parametrize("value", [np.float32(1), [1, 2], np.zeros(3, bool)])
def test_values_that_fit_give_no_reason_to_refuse_them(value):
    shape = (None,) * np.ndim(value)
    assert why_refused(value, "float64", shape, "'x'") is None


@pytest.mark.parametrize("number", [1, 7, np.int8(7), np.uint64(7), np.array(7)])
def test_a_count_is_any_integer_that_is_large_enough(number):
    checked = checked_count("num_slices", number)
    assert checked == number
    assert type(checked) is int
    assert checked_count("start", 0, least=0) == 0


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (0, ValueError, "n=0 is less than 1; pass a number of rows"),
        (np.int8(-3), ValueError, "n=-3 is less than 1; pass a number of rows"),
        (True, TypeError, "n=True is not an integer; pass a number of rows"),
        (np.True_, TypeError, r"n=(np\.)?True_? is not an integer"),
        (2.0, TypeError, "n=2.0 is not an integer; pass a number of rows"),
        ("2", TypeError, "n='2' is not an integer"),
        (None, TypeError, "n=None is not an integer"),
        ([2], TypeError, r"n=\[2\] is not an integer"),
    ],
)
def test_other_counts_are_refused_with_the_value_and_advice(number, error, message):
    with pytest.raises(error, match=message):
        checked_count("n", number, advice="pass a number of rows")


@pytest.mark.parametrize("value", [True, np.False_])
def test_a_flag_is_true_or_false(value):
    assert checked_flag("nccl", value) is bool(value)


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_what_is_neither_is_no_flag(value):
    with pytest.raises(TypeError, match=f"nccl={value!r} is neither True nor False"):
        checked_flag("nccl", value)


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        ((), (), True),
        ((2, None), (2, 3), True),
        ((None,), (None,), True),
        ((2, 3), (2, 4), False),
        ((2, 1), (2, 3), False),
        ((2,), (2, None), False),
    ],
)
def test_shapes_are_compared_as_far_as_they_are_known(one, other, may):
    assert may_be_equal(one, other) is may_be_equal(other, one) is may
