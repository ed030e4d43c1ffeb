"""Where kernels of normalisation and cross-entropy read from and write to: loops in C, CUDA and NumPy."""

import numpy as np
import pytest

from support.cases import norms as cases
from support.cases.norms import KERNELS, listed


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
