from types import SimpleNamespace

import numpy as np
import pytensor.tensor as pt
import pytest

from synk.compile.dispatch.sampler import bernoulli_mask, same_numbers, sampler, unbatched


def op_of(name, *parameters, **keywords):
    rng = pt.random.type.random_generator_type("rng")
    return getattr(pt.random, name)(*parameters, rng=rng, return_next_rng=True, **keywords)[1].owner.op


def draw(name, *parameters, size=(400, 500), **keywords):
    parameters = [np.asarray(parameter) for parameter in parameters]
    return sampler(op_of(name, *parameters, **keywords))(np.random.default_rng(5), size, *parameters)


@pytest.mark.parametrize("p", [0.0, 1e-4, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_share_of_ones(p, dtype):
    mask = bernoulli_mask(np.random.default_rng(5), np.asarray(p, dtype), (1000, 501))
    p = float(np.asarray(p, dtype))
    assert abs(mask.mean() - p) <= 5 * (p * (1 - p) / mask.size) ** 0.5
    assert p not in (0, 1) or mask.mean() == p


def test_share_of_ones_by_parameter():
    p = np.linspace(0, 1, 5)
    share = bernoulli_mask(np.random.default_rng(5), p, (100_000, 5)).mean(axis=0)
    np.testing.assert_allclose(share, p, atol=0.01)
    assert share[0] == 0
    assert share[-1] == 1


def test_neighbours_are_independent():
    mask = bernoulli_mask(np.random.default_rng(5), np.asarray(0.5), (1_000_000,))
    for lag in (1, 2, 3, 4):
        assert abs((mask[lag:] == mask[:-lag]).mean() - 0.5) < 0.0025


@pytest.mark.parametrize("p", [2.0**-40, 0.5, 0.3, 1.0])
def test_all_bits_of_the_probability_count(p):
    """Words that equal the first 32 bits of ``p``: more random bits decide."""
    first, rest = divmod(min(p, 1 - 2.0**-53) * 2.0**32, 1.0)

    def integers(low, high, count, dtype, endpoint):
        return np.full(count, int(first) * (2**32 + 1), dtype)

    for uniform in (0.0, rest - 2.0**-30, min(rest + 2.0**-30, 1 - 2.0**-53)):
        generator = SimpleNamespace(integers=integers, random=lambda shape, u=uniform: np.full(shape, u))
        assert bernoulli_mask(generator, np.asarray(p), (3,)).tolist() == [uniform < rest or p == 1] * 3


@pytest.mark.parametrize("p", [-0.1, 1.1, np.nan])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(ValueError, match="between 0 and 1"):
        bernoulli_mask(np.random.default_rng(5), np.asarray(p), (2,))


def test_odd_and_empty_sizes():
    for shape in ((), (1,), (7,), (0, 3), (3, 5)):
        assert bernoulli_mask(np.random.default_rng(5), np.asarray(0.5), shape).shape == shape


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_all_widths(dtype):
    x = draw("integers", 3, 90, dtype=dtype)
    assert x.dtype == dtype
    assert (x.min(), x.max()) == (3, 89)
    assert abs(x.mean() - 46) < 0.3


def test_float16():
    for name in ("uniform", "normal"):
        x = draw(name, 1.0, 3.0, dtype="float16")
        assert x.dtype == "float16"
        assert abs(x.mean(dtype="float64") - {"uniform": 2, "normal": 1}[name]) < 0.03


def test_negative_deviation_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        draw("normal", 0.0, -1.0, dtype="float32")


def test_categories_in_too_small_a_size_are_refused():
    with pytest.raises(ValueError, match="too small"):
        draw("categorical", np.full((3, 2), 0.5), size=(1,))


@pytest.mark.parametrize(
    ("name", "dtype", "same"),
    [
        ("uniform", "float64", True),
        ("uniform", "float32", False),
        ("normal", "float16", False),
        ("beta", "float32", True),
        ("integers", "int64", True),
        ("integers", "int8", False),
        ("bernoulli", "int64", False),
    ],
)
def test_which_draw_the_numbers_of_pytensor(name, dtype, same):
    parameters = {"integers": (0, 9), "bernoulli": (0.5,)}.get(name, (1.0, 2.0))
    assert same_numbers(op_of(name, *parameters, dtype=dtype)) == same


def test_batch_axes_of_length_one_go():
    normal, whole = op_of("normal"), op_of("permutation", np.arange(3))
    one, many = np.ones((1, 1)), np.ones((1, 4))
    assert [p.shape for p in unbatched(normal, (3, 4), [one, many])] == [(), (1, 4)]
    assert [p.shape for p in unbatched(normal, (4,), [one, one])] == [(1, 1), (1, 1)]
    assert [p.shape for p in unbatched(normal, None, [one, one])] == [(1, 1), (1, 1)]
    assert [p.shape for p in unbatched(whole, (3,), [one])] == [(1, 1)]
    choices = op_of("categorical", [0.5, 0.5])
    assert [p.shape for p in unbatched(choices, (3, 4), [np.ones((1, 1, 2))])] == [(2,)]
