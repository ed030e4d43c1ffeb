import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(1, 2)
TWICE = np.array([0, 2, 2])


@pytest.mark.parametrize("mode", [None, "debug", "FAST_COMPILE"])
def test_a_set_of_a_read_is_numpys_in_outputs_and_updates(module_ranks, mode):
    v, i = pytensor.shared(np.zeros(3), "v"), pt.lvector("i")
    new = pt.set_subtensor(v[i], v[i] + 1)
    function = synk.function([], new, bcast_inputs=[i], updates=[(v, new)], mode=mode)
    np.testing.assert_array_equal(function(TWICE), [1, 0, 1])
    for rank in range(module_ranks):
        np.testing.assert_array_equal(synk.get_value(rank, v), [1, 0, 1])


@pytest.mark.parametrize("mode", [None, "FAST_COMPILE"])
def test_a_read_of_a_set_is_numpys_whatever_the_ranks(module_ranks, mode):
    y, i = pt.dvector("y"), pt.lvector("i")
    function = synk.function([], pt.set_subtensor(pt.zeros(4)[i], y)[i], bcast_inputs=[y, i], mode=mode)
    np.testing.assert_array_equal(function(np.arange(1.0, 4), TWICE), [1, 3, 3])


def test_rows_that_are_set_by_repeated_positions_are_numpys(module_ranks):
    y, i = pt.dvector("y"), pt.lvector("i")
    function = synk.function([y, i], pt.set_subtensor(pt.zeros(4)[i], y)[i])
    np.testing.assert_array_equal(function(np.arange(1.0, 4), TWICE), [1, 3, 3])


def test_truth_values_are_added_to_a_table_that_all_ranks_have(module_ranks):
    table, i, added = pt.vector("table", dtype="bool"), pt.lvector("i"), pt.vector("added", dtype="bool")
    function = synk.function([i, added], pt.inc_subtensor(table[i], added), bcast_inputs=[table])
    expected = np.zeros(4, bool)
    np.add.at(expected, [1, 1, 2], [True, False, True])
    np.testing.assert_array_equal(function([1, 1, 2], [True, False, True], np.zeros(4, bool)), expected)
