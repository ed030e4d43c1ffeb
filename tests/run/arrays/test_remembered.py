"""Calls that look like the last one, but of another run."""

import numpy as np
import pytensor
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


def test_calls_go_on_after_a_restart(ranks):
    ranks(2)
    x, w = pt.matrix("x"), pt.vector("w")
    f = synk.function([x], ((x * w.sum()).sum(), "sum"), bcast_inputs=[w])
    data = synk.data(np.ones((8, 2)))
    v = pytensor.shared(np.ones(3))
    step = synk.sequence(synk.function([], updates=[(v, v + 1)]), (synk.all_reduce, v, "avg"))
    for _ in range(2):
        for _ in range(3):
            assert f(data, np.ones(2)) == 32
            step()
        synk.commit()
        synk.restart()
    assert v.get_value().tolist() == [7] * 3
