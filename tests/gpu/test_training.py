"""Training on a GPU gives the losses and parameters of training on cores, with one rank and with two."""

import pytest

from support.gpu.stage import check

CUTS = [(2, 3), *(pytest.param(*cut, marks=pytest.mark.soak) for cut in [(1, 1), (1, 3), (2, 1)])]


@pytest.mark.parametrize(("n_ranks", "num_slices"), CUTS)
def test_perceptron(stage, on_cores, n_ranks, num_slices):
    found = stage.play("perceptron", n_ranks=n_ranks, num_slices=num_slices)
    check(found, on_cores("perceptron"), n_ranks, rtol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_two_convolutions(stage, on_cores, n_ranks):
    found = stage.play("digit_filters", n_ranks=n_ranks, num_slices=2)
    check(found, on_cores("digit_filters"), n_ranks, rtol=1e-3)


def test_batches_that_are_announced(stage, on_cores):
    found = stage.play("perceptron", n_ranks=2, announced=True)
    check(found, on_cores("perceptron"), 2, rtol=1e-4)
