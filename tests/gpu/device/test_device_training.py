"""Training on GPUs that are not there: the numbers of cores, and no gradient passes through the host."""

import numpy as np
import pytest

import synk
from support.cases.small_training import train
from support.cupy.crossings import Crossings


@pytest.mark.parametrize(("n_ranks", "version"), [(3, 23004), (2, None)])
def test_an_mlp_is_trained_to_the_numbers_of_cores(gpus, n_ranks, version):
    gpus(n_ranks, version=version)
    losses, values, _ = train()
    synk.close()
    synk.fork(n_ranks, device="cpu")
    expected_losses, expected, _ = train()
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-9)
    for value, there in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, there, rtol=1e-7, atol=1e-12)
        np.testing.assert_array_equal(value, np.broadcast_to(value[0], value.shape))


@pytest.mark.parametrize("version", [23004, None], ids=["nccl", "staged"])
def test_no_gradient_passes_through_the_host(gpus, monkeypatch, version):
    crossings = Crossings(monkeypatch)
    gpus(2, version=version)
    *_, seen = train(look=crossings.take)
    flat = 8 * (6 * 40 + 40 + 40 * 3 + 3 + 1)
    rows = 8 * 4 * 6
    for uploaded, downloaded in seen:
        if version is None:
            assert (uploaded, downloaded) == (flat, flat)
        else:
            assert 0 < uploaded <= rows
            assert downloaded <= 8  # the loss
