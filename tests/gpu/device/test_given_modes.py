"""Functions in a mode of their own, among others that compute on GPUs."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk


def results(n_ranks):
    """Run steps of two functions and collectives; return their results, and the values they leave."""
    v = pytensor.shared(np.arange(4.0), name="v")
    x = pt.dvector("x")
    outputs, updates = [(x.sum(), "sum"), (v, "avg")], [(v, v + x.sum(), "avg")]  # each rank has its own
    there = synk.function([x], outputs, updates=updates)
    here = synk.function([x], outputs, updates=updates, mode="FAST_COMPILE")
    step = synk.sequence(there, (synk.all_reduce, v), here, (synk.all_reduce, v), there)
    rows = np.arange(9.0)
    returned = [step(rows, num_slices=num_slices) for num_slices in (1, 1, 1, 1, 3)]
    synk.gather(v)  # which leaves it on the device
    returned.append(here(rows))
    return returned, [synk.get_value(rank, v) for rank in range(n_ranks)]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_functions_with_a_mode_read_values_left_on_the_device(gpus, n_ranks):
    synk.fork(n_ranks, device="cpu")
    expected, left = results(n_ranks)
    synk.close()
    gpus(n_ranks, cuda_graphs=True)
    found, left_there = results(n_ranks)
    np.testing.assert_array_equal(left_there, left)
    for values, wanted in zip(found, expected, strict=True):
        for value, other in zip(values, wanted, strict=True):
            np.testing.assert_array_equal(value, other)


def test_a_value_that_was_returned_is_not_written_over():
    synk.fork(2, device="cpu")
    v = pytensor.shared(np.arange(4.0), name="v")
    f = synk.function([], [(v, None)], updates=[(v, v + 1)], mode="FAST_COMPILE")
    synk.all_reduce(v)  # it moves to where all ranks see it
    (first,) = f()
    kept = first.copy()
    step = synk.sequence(f, (synk.all_reduce, v))
    returned = [step()[0] for _ in range(3)]
    synk.close()
    np.testing.assert_array_equal(first, kept)
    for number, value in enumerate(returned, start=1):
        np.testing.assert_array_equal(value, np.arange(4.0) + number)
