"""Where kernels of normalisation and cross-entropy read from and write to: loops in C, CUDA and NumPy."""

import numpy as np
import pytest

from support.cases import norms as cases
from support.cases.norms import EPS


def of_batch_norm(shape, layout, dtype):
    def inputs(provider):
        gy, x, gamma, beta = cases.batch(5, shape, layout, dtype)
        forward = provider.batch_norm(EPS, True, layout)
        _, mean, inv_std = forward(x, gamma, beta)
        yield forward, (x, gamma, beta)
        yield provider.batch_norm_gradient(True, layout), (gy, x, gamma, beta, mean, inv_std)

    return inputs


def of_layer_norm(provider):
    gy, x, gamma, beta = cases.batch(3, (100, 7), "NHWC", "float64")
    yield provider.layer_norm(EPS, 1), (x, gamma, beta)
    yield provider.layer_norm_gradient(1), (gy, x, gamma, x[:, 0], x[:, 1])


def of_cross_entropy(provider):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(50, 30)) * 5, random.integers(0, 30, 50)
    forward = provider.softmax_cross_entropy()
    yield forward, (logits, labels)
    log_sum = forward(logits, labels)[1]
    yield provider.softmax_cross_entropy_gradient(), (random.normal(size=50), logits, labels, log_sum)


KERNELS = {
    "batch norm of channels first": of_batch_norm((2, 4, 5, 4), "NCHW", "float32"),
    "batch norm of channels last": of_batch_norm((6, 4, 3, 8), "NHWC", "float64"),
    "layer norm": of_layer_norm,
    "cross-entropy": of_cross_entropy,
}


def listed(results):
    return list(results) if isinstance(results, tuple | list) else [results]


def elsewhere(array):
    """Return the same numbers in another order in memory, or with gaps."""
    return np.repeat(array, 2)[::2] if array.ndim == 1 else np.asfortranarray(array)


@pytest.mark.parametrize("provider", cases.EVERY)
@pytest.mark.parametrize("name", KERNELS)
def test_results_go_where_they_are_wanted_from_wherever_inputs_are(provider, name):
    for run, inputs in KERNELS[name](provider):
        expected = listed(run(*inputs))
        wanted = [np.empty_like(value) for value in expected]
        out = tuple(wanted) if len(wanted) > 1 else wanted[0]
        for value, place, same in zip(listed(run(*inputs, out=out)), wanted, expected, strict=True):
            assert value is place
            np.testing.assert_array_equal(value, same)
        if len(wanted) > 1:  # one place may be given alone
            results = run(*inputs, out=(wanted[0], *[None] * (len(wanted) - 1)))
            assert results[0] is wanted[0]
            np.testing.assert_array_equal(results[-1], expected[-1])
        rtol = 1e-9 if expected[0].dtype == "float64" else 1e-4
        for value, same in zip(listed(run(*map(elsewhere, inputs))), expected, strict=True):
            np.testing.assert_allclose(value, same, rtol, rtol / 100)
