"""Training on GPUs that are not there: the numbers of cores, and no gradient passes through the host."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from crossings import Crossings

import synk
from synk.extensions import updates
from synk.extensions.train import make_train_function


def shared(value, name):
    return pytensor.shared(np.asarray(value, dtype="float64"), name=name)


def network(rng):
    """Return an MLP's loss, inputs and parameters."""
    x, labels = pt.matrix("x", dtype="float64"), pt.lvector("labels")
    parameters, value = [], x
    for number, (n_in, n_out) in enumerate([(6, 40), (40, 3)]):
        w = shared(rng.normal(size=(n_in, n_out)) / n_in, f"w{number}")
        b = shared(np.zeros(n_out), f"b{number}")
        value = value @ w + b if number else pt.tanh(value @ w + b)
        parameters += [w, b]
    losses = -pt.log(pt.special.softmax(value, axis=1))[pt.arange(labels.shape[0]), labels]
    return losses.mean(), [x, labels], parameters


def train(n_steps=3, look=lambda: None):
    """Train on the open run; return losses, parameters of all ranks, and what `look` saw of the last step."""
    rng = np.random.default_rng(5)
    loss, inputs, parameters = network(rng)
    step = make_train_function(loss, parameters, inputs, updates.adam, learning_rate=0.01)
    rows, labels = rng.normal(size=(7, 6)), rng.integers(3, size=7)
    losses = []
    for _ in range(n_steps):
        look()
        losses.append(float(step(rows, labels)))
    seen = look()
    return losses, [synk.gather(parameter) for parameter in parameters], seen


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
