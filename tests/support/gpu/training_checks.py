"""The checks of training on a GPU, beside training on cores."""

import numpy as np


def check(found, expected, n_ranks, rtol):
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=rtol)
    assert len(found["params"]) == n_ranks
    for params in found["params"]:
        assert params == found["params"][0], "ranks came to different parameters"
    np.testing.assert_allclose(found["params"][0], expected["params"][0], rtol=20 * rtol)
