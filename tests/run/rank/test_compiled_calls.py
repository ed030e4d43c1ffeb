"""The ranks as one without rows sees them: it takes part in every collective, and adds nothing."""

import numpy as np
import pytest

from synk.run.rank.compiled_calls import RowlessCommunicator
from synk.transport.comm import LoneCommunicator
from synk.values.operations import UFUNCS


@pytest.mark.parametrize(
    ("dtype", "ops"),
    [
        ("float32", ("sum", "prod", "min", "max")),
        ("uint64", ("sum", "prod", "min", "max")),
        ("int8", ("sum", "prod", "min", "max")),
        ("bool", ("prod", "min", "max")),
        ("complex128", ("sum", "prod")),
    ],
)
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_it_brings_what_changes_no_other_value(name, dtype, ops):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    for op in ops:
        brought = getattr(RowlessCommunicator(LoneCommunicator()), name)(np.full_like(values, 1), op)
        assert brought.dtype == values.dtype
        np.testing.assert_array_equal(UFUNCS[op](brought, values), values)


def test_it_adds_zeros_to_an_average_even_where_its_mean_of_nothing_is_nan():
    brought = RowlessCommunicator(LoneCommunicator()).all_reduce(np.full((2, 2), np.nan), "avg")
    np.testing.assert_array_equal(brought, np.zeros((2, 2)))


def test_it_gathers_no_rows_and_broadcasts_zeros():
    ranks = RowlessCommunicator(LoneCommunicator()).on_host
    assert [part.shape for part in ranks.all_gather(np.ones((2, 3)))] == [(0, 3)]
    np.testing.assert_array_equal(ranks.broadcast(np.ones(3)), np.zeros(3))
    assert (ranks.rank, ranks.n_ranks) == (0, 1)


def test_it_brings_a_number_without_axes_too():
    assert RowlessCommunicator(LoneCommunicator()).all_reduce(np.float64(3), "max") == -np.inf
