"""First values: their spread against the formulas, and what is refused."""

from functools import partial

import numpy as np
import pytest

from synk.extensions import initialisers
from synk.extensions.initialisers import fans

DENSE = (400, 300)
FILTERS = (64, 32, 5, 3)  # 32 * 15 = 480 products into an output, 64 * 15 = 960 into an input's gradient
DRAWN = {
    "he_normal": (initialisers.he_normal, lambda fan_in, fan_out: 2 / fan_in),
    "he_normal_out": (partial(initialisers.he_normal, fan="out"), lambda fan_in, fan_out: 2 / fan_out),
    "he_uniform": (initialisers.he_uniform, lambda fan_in, fan_out: 2 / fan_in),
    "he_uniform_out": (partial(initialisers.he_uniform, fan="out"), lambda fan_in, fan_out: 2 / fan_out),
    "glorot_normal": (initialisers.glorot_normal, lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
    "glorot_uniform": (initialisers.glorot_uniform, lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
}
drawn = pytest.mark.parametrize(("init", "variance"), DRAWN.values(), ids=DRAWN)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 7), (4, 7)), ((8, 3, 5, 5), (75, 200)), ((6, 1, 3, 3), (9, 54)), ((2, 3, 4), (12, 8))],
)
def test_fans(shape, expected):
    assert fans(shape) == expected


@drawn
@pytest.mark.parametrize(("shape", "both_fans"), [(DENSE, (400, 300)), (FILTERS, (480, 960))])
def test_mean_and_variance(init, variance, shape, both_fans):
    """Within five standard errors: normal numbers, which spread most, have kurtosis 3."""
    values = init(shape, np.random.default_rng(0)).astype("float64")
    expected = variance(*both_fans)
    assert abs(values.mean()) < 5 * np.sqrt(expected / values.size)
    assert abs(values.var() / expected - 1) < 5 * np.sqrt(2 / values.size)


@drawn
def test_uniform_ones_have_bounds_and_normal_ones_have_none(init, variance):
    values = init(DENSE, np.random.default_rng(0), "float64")
    bound = np.sqrt(3 * variance(*DENSE))
    name = getattr(init, "func", init).__name__
    assert (abs(values).max() <= bound) == name.endswith("uniform")
    assert abs(values).max() > 0.99 * bound


@drawn
def test_a_seed_gives_the_same_values_in_any_dtype(init, variance):
    single, double = (init(FILTERS, np.random.default_rng(3), dtype) for dtype in ("float32", "float64"))
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(single, double.astype("float32"))
    assert not np.array_equal(single, init(FILTERS, np.random.default_rng(4)))


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9), (5, 2, 3, 3), (40, 2, 3, 3)])
@pytest.mark.parametrize("gain", [1.0, 2.5])
def test_orthogonal_matrices(shape, gain):
    matrix = initialisers.orthogonal(shape, np.random.default_rng(0), "float64", gain=gain)
    assert matrix.shape == shape
    matrix = matrix.reshape(shape[0], -1)
    products = matrix @ matrix.T if shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(products, gain**2 * np.eye(len(products)), atol=1e-12)


def test_orthogonal_matrices_lean_nowhere():
    """Without the signs taken out, the diagonal of Q would be negative more often than not."""
    rng = np.random.default_rng(0)
    corners = [initialisers.orthogonal((3, 3), rng)[0, 0] for _ in range(2000)]
    assert abs(np.mean(np.sign(corners))) < 5 / np.sqrt(2000)


def test_constants_draw_nothing():
    assert initialisers.zeros((3,)).tolist() == [0, 0, 0]
    assert initialisers.ones((2, 2), None, "float64").tolist() == [[1, 1], [1, 1]]
    assert initialisers.ones((2,)).dtype == np.float32


@pytest.mark.parametrize("init", [*(init for init, _ in DRAWN.values()), initialisers.orthogonal])
def test_what_is_refused(init):
    with pytest.raises(TypeError, match=r"rng=0 is no random generator; pass rng=numpy.random.default_rng"):
        init((3, 3), 0)
    for shape in [(), (3,), (3, 0)]:
        with pytest.raises(ValueError, match="has no fans"):
            init(shape, np.random.default_rng(0))


@pytest.mark.parametrize("init", [initialisers.he_normal, initialisers.he_uniform])
def test_another_fan_is_refused(init):
    with pytest.raises(ValueError, match="fan='avg' is neither"):
        init((3, 3), np.random.default_rng(0), fan="avg")
