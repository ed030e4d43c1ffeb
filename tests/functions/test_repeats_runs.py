"""Calls that look like the last one, but of another run."""

import numpy as np
import pytensor.tensor as pt
import pytest

import synk


def made():
    x = pt.vector("x")
    f, data = synk.function([x], (x.sum(), "sum")), synk.data(np.arange(5.0))
    assert f(data) == f(data) == 10
    return f, data


def test_data_and_functions_of_a_closed_run_are_refused(ranks):
    ranks(2)
    old_function, old_data = made()
    old_sequence = synk.sequence(old_function)
    assert old_sequence(old_data) == 10
    synk.close()
    ranks(2)
    function, data = made()  # of the same numbers
    sequence = synk.sequence(function)
    for call, argument in (
        (function, old_data),
        (sequence, old_data),
        (old_function, data),
        (old_function, old_data),
        (old_sequence, data),
    ):
        with pytest.raises(synk.SynkStateError, match="its run was closed"):
            call(argument)
    with pytest.raises(synk.SynkStateError, match="its run was closed"):
        synk.sequence(function, old_function)
    assert function(data) == sequence(data) == 10


def test_the_thread_that_gathers_ends_with_the_run(ranks, recwarn):
    x = pt.matrix("x")
    for n_ranks in (1, 2):
        ranks(n_ranks)
        f, data = synk.function([x], (x.sum(), "sum")), synk.data(np.ones((40, 2**15)))
        assert f(data, batch=[3, 1], next_batch=range(39, -1, -1)) == 2**16
        # Closed while it gathers; what is left behind is looked for after the test.
        synk.close()
    assert not recwarn.list  # fork() warns of threads
