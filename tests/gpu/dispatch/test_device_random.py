"""Draws on a device, by the kernels run on the host: laws, states, parameters, what travels."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats
from pytensor.compile.mode import Mode

from support.cuda import emulator
from support.cupy import stand_in
from synk import ops
from synk.compile import ArrayLinker, array_mode
from synk.gpu.dispatch import device_random
from synk.gpu.dispatch.device_random import Sampler, device_sampler
from synk.run.arrays.variables import stream

pytestmark = pytest.mark.skipif(not emulator.available(), reason="there is no g++")


LAWS = {
    "uniform": ((-1.0, 3.0), scipy.stats.uniform(-1, 4)),
    "normal": ((1.0, 2.0), scipy.stats.norm(1, 2)),
    "exponential": ((2.0,), scipy.stats.expon(scale=2)),
    "gumbel": ((1.0, 2.0), scipy.stats.gumbel_r(1, 2)),
}


def rv(name, *parameters, seed=5, **keywords):
    rng = pytensor.shared(np.random.default_rng(seed))
    next_rng, x = getattr(pt.random, name)(*parameters, rng=rng, return_next_rng=True, **keywords)
    return rng, next_rng, x


def compiled(device, rng, next_rng, x, inputs=()):
    mode = array_mode(ArrayLinker(device, host_ops="raise"))
    return pytensor.function([*inputs], x, updates={rng: next_rng}, mode=mode)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_laws(device, name, dtype):
    parameters, law = LAWS[name]
    draw = compiled(device, *rv(name, *parameters, size=(200, 500), dtype=dtype))
    for _ in range(2):
        x = draw().astype("float64").ravel()
        x += (
            np.random.default_rng(0).uniform(-0.5, 0.5, x.size)
            * np.spacing(np.float16(x))
            * (dtype == "float16")
        )
        assert scipy.stats.kstest(x, law.cdf).pvalue > 1e-3
        assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 4 / x.size**0.5


def test_laws_of_whole_numbers(device):
    x = compiled(device, *rv("integers", -3, 7, size=100_000))()
    counts = np.unique_counts(x)
    np.testing.assert_array_equal(counts.values, np.arange(-3, 7))
    assert scipy.stats.chisquare(counts.counts).pvalue > 1e-3
    kept = compiled(device, *rv("bernoulli", 0.3, size=(1000, 400), dtype="bool"))()
    assert abs(kept.mean() - 0.3) < 3 * (0.3 * 0.7 / kept.size) ** 0.5


# --- draws -----------------------------------------------------------------------------------------------


def test_a_draw_is_one_launch_and_nothing_travels(device):
    draw = compiled(device, *rv("bernoulli", 0.3, size=(20, 30), dtype="bool"))
    assert draw.vm.jit_fn.transfers == (0, 1)  # the result
    stand_in.counts.reset()
    draw()
    assert stand_in.counts == stand_in.Counts(launches=1, uploads=0, downloads=1)


def test_numbers_do_not_depend_on_the_launch(device, monkeypatch):
    sampler = Sampler(device, "normal", "float32", np.dtype("float32"))

    def draw():
        return sampler(np.random.default_rng(1), (1001,), np.float32(0), np.float32(1)).get()

    expected = draw()
    monkeypatch.setattr(device_random, "THREADS", 7)
    monkeypatch.setattr(device_random, "MOST_BLOCKS", 3)
    np.testing.assert_array_equal(draw(), expected)


def test_draws_of_calls_nodes_and_ranks_differ(device):
    rng, next_rng, x = rv("uniform", size=100, dtype="float64")
    last_rng, y = pt.random.uniform(size=100, rng=next_rng, return_next_rng=True, dtype="float64")
    draw = compiled(device, rng, last_rng, [x, y])
    generator = np.random.default_rng(5)
    draws = [*draw(), *draw()]
    for rank in (1, 2):
        rng.set_value(stream(generator, rank))
        draws += draw()
    assert np.unique(np.concatenate(draws)).size == 100 * len(draws)


def test_a_state_gives_the_same_numbers_again(device):
    rng, next_rng, x = rv("normal", size=10, dtype="float32")
    draw = compiled(device, rng, next_rng, x)
    draw()
    committed = rng.get_value()
    expected = [draw(), draw()]
    assert not np.array_equal(*expected)
    rng.set_value(committed)
    np.testing.assert_array_equal([draw(), draw()], expected)


def test_states_advance_alike_whether_copied_or_not(device):
    rng, next_rng, x = rv("normal", size=10, dtype="float32")
    still = pytensor.function([], x, mode=Mode(ArrayLinker(device), None))
    np.testing.assert_array_equal(still(), still())
    assert rng.get_value().bit_generator.state == np.random.default_rng(5).bit_generator.state
    expected = still()
    moving = compiled(device, rng, next_rng, x)
    np.testing.assert_array_equal(moving(), expected)
    generator = np.random.default_rng(5)
    generator.bit_generator.random_raw(2)
    assert rng.get_value().bit_generator.state == generator.bit_generator.state


# --- parameters ------------------------------------------------------------------------------------------


def test_parameters_may_be_arrays_on_the_device(device):
    mean, deviation = pt.fmatrix("mean"), pt.fvector("deviation")
    rng, next_rng, x = rv("normal", mean, deviation, dtype="float32")
    draw = compiled(device, rng, next_rng, x, [mean, deviation])
    means, deviations = np.arange(5, dtype="float32")[:, None], np.array([1, 0, 2], "float32")
    result = draw(means, deviations)
    z = Sampler(device, "normal", "float32", np.dtype("float32"))
    standard = z(np.random.default_rng(5), (5, 3), np.float32(0), np.float32(1)).get()
    np.testing.assert_allclose(result, means + deviations * standard, rtol=1e-6)


def test_single_parameters_on_the_device_stay_there(device):
    p = pytensor.shared(np.array([0.25]), shape=(1,))
    rng, next_rng, x = rv("bernoulli", p * 2, size=1000, dtype="bool")
    draw = compiled(device, rng, next_rng, x)
    draw()
    stand_in.counts.reset()
    assert abs(draw().mean() - 0.5) < 0.1
    assert (stand_in.counts.uploads, stand_in.counts.downloads) == (0, 1)


def test_arrays_of_bounds(device):
    low, high = pt.lvector("low"), pt.lmatrix("high")
    values = np.array([-5, 0, 2**40]), np.array([[2**41], [2**42]])
    draw = compiled(device, *rv("integers", low, high, size=(2, 3)), [low, high])
    x = draw(*values)
    assert (values[0] <= x).all()
    assert (x < values[1]).all()
    draw = compiled(device, *rv("integers", low, 3, size=(3,)), [low])
    np.testing.assert_array_equal(draw(np.array([2, 2, 2])), 2)
    draw = compiled(device, *rv("integers", 2, high, size=(4, 1)), [high])
    np.testing.assert_array_equal(draw(np.full((4, 1), 3)), 2)


def test_shapes(device):
    p = pt.dmatrix("p")
    assert compiled(device, *rv("bernoulli", p), [p])(np.ones((2, 3))).shape == (2, 3)
    assert compiled(device, *rv("bernoulli", p, size=(4, 2, 3)), [p])(np.ones((2, 3))).shape == (4, 2, 3)
    assert compiled(device, *rv("uniform", dtype="float32"))().shape == ()
    assert compiled(device, *rv("uniform", np.zeros((1, 1)), dtype="float32"))().shape == (1, 1)
    assert compiled(device, *rv("uniform", size=(0, 3), dtype="float32"))().shape == (0, 3)
    with pytest.raises(ValueError, match=r"size \(3,\) is too small for parameters of shape \(5,\)"):
        Sampler(device, "bernoulli", "bool", np.dtype(bool))(
            np.random.default_rng(), (3,), stand_in.ndarray(np.ones(5))
        )


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("bernoulli", (1.5,), "between 0 and 1"),
        ("bernoulli", (np.nan,), "between 0 and 1"),
        ("normal", (0.0, -1.0), "negative"),
        ("exponential", (-1.0,), "negative"),
        ("integers", (3, 3), "low=3 is not below high=3"),
        ("integers", (0, 2**40), "out of bounds for int32"),
    ],
)
def test_wrong_numbers_are_refused(device, name, parameters, message):
    keywords = {"dtype": "int32"} if name == "integers" else {}
    draw = compiled(device, *rv(name, *parameters, size=3, **keywords))
    with pytest.raises(ValueError, match=message):
        draw()


def test_distributions_without_a_kernel_are_drawn_on_the_host_and_reported(device):
    with pytest.raises(NotImplementedError, match="gamma"):
        compiled(device, *rv("gamma", 2.0, scale=1.0, size=3))
    op = rv("normal", size=3)[2].owner.op
    assert device_sampler(op, np) is None
    assert device_sampler(op, device) is not None


def test_dropout_stays_on_the_device(device):
    x = pt.fmatrix("x")
    rng = pytensor.shared(np.random.default_rng(3))
    y, update = ops.dropout(x, 0.25, rng)
    function = pytensor.function(
        [x],
        [y, pt.grad(y.sum(), x)],
        updates=dict([update]),
        mode=array_mode(ArrayLinker(device, host_ops="raise")),
    )
    ones = np.ones((300, 400), "float32")
    first, gradient = function(ones)
    np.testing.assert_array_equal(first, gradient)
    np.testing.assert_array_equal(np.unique(first), np.float32([0, 1 / 0.75]))
    assert abs((first == 0).mean() - 0.25) < 0.01
    assert not np.array_equal(function(ones)[0], first)
