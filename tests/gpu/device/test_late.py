"""Results of a command are fetched when all of it has been launched."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases import small_training
from support.cupy import stand_in
from synk.run.rank.sums import SMALL


@pytest.fixture
def fetched(monkeypatch):
    """Return how many launches there had been, at each time that an array was fetched."""
    counted, fetch = [], stand_in.asnumpy

    def asnumpy(array):
        if isinstance(array, stand_in.ndarray):
            counted.append(stand_in.counts.launches)
        return fetch(array)

    monkeypatch.setattr(stand_in, "asnumpy", asnumpy)
    return counted


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_the_update_is_launched_before_the_loss_is_fetched(gpus, fetched, cuda_graphs):
    gpus(1, cuda_graphs=cuda_graphs)

    def look():
        seen = [*fetched], stand_in.counts.launches
        fetched.clear()
        stand_in.counts.reset()
        return seen

    losses, _, (counted, launches) = small_training.train(4, look)
    assert counted == [launches]
    synk.close()
    synk.fork(1, device="cpu")
    np.testing.assert_allclose(losses, small_training.train(4)[0], rtol=1e-6)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_what_a_later_step_writes_over_is_returned_as_it_was(gpus, cuda_graphs):
    gpus(1, cuda_graphs=cuda_graphs)
    small, large = pytensor.shared(np.float64(1)), pytensor.shared(np.ones(SMALL))
    read = synk.function([], [small, small * 2, large])
    write = synk.function([], updates=[(small, small + 1), (large, large + 1)])
    both = synk.sequence(read, write)
    for number in range(1, 7):
        value, twice, several = both()
        assert (value, twice) == (number, 2 * number)
        np.testing.assert_array_equal(several, np.full(SMALL, number))


def test_slices_are_added_up_as_before(gpus):
    gpus(1)
    x = pt.dvector("x")
    mean = synk.function([x], x.mean())
    assert mean(np.arange(6.0), num_slices=3) == 2.5
