import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random import shared_rng
from pytensor.tensor.random.basic import BernoulliRV

from support.cases.op_checks import PLAIN, draw, ops_of
from support.slow import slow
from synk.compile import array_mode
from synk.ops import dropout

MODES = [array_mode(), PLAIN]


def compiled(rate, mode, dtype="float32", seed=0, update=True):
    """Return a function of x that gives the dropped x and the gradient of its sum of squares."""
    x = pt.matrix("x", dtype=dtype)
    y, advance = dropout(x, rate, shared_rng(seed=seed))
    gradient = pytensor.grad((y**2).sum(), x)
    return pytensor.function([x], [y, gradient], updates=[advance] if update else [], mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rate", [0.25, *map(slow, [0.5, 0.9])])
def test_elements_are_dropped_or_scaled(rate, dtype, mode):
    x = 1 + np.abs(draw((200, 100), dtype))
    y, gradient = compiled(rate, mode, dtype)(x)
    assert y.dtype == gradient.dtype == dtype
    kept = y != 0
    deviation = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    np.testing.assert_allclose(y[kept], x[kept] / (1 - rate), rtol=1e-6)
    # The same elements, scaled once more.
    np.testing.assert_allclose(gradient, 2 * y / (1 - rate), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_the_state_goes_on_from_call_to_call(mode):
    x = np.ones((30, 20), "float32")
    going = compiled(0.5, mode)
    first, second = going(x)[0], going(x)[0]
    assert (first != second).any()
    np.testing.assert_array_equal(compiled(0.5, mode)(x)[0], first)
    assert (compiled(0.5, mode, seed=1)(x)[0] != first).any()
    standing = compiled(0.5, mode, update=False)
    np.testing.assert_array_equal(standing(x)[0], standing(x)[0])


def test_one_byte_an_element_is_kept_for_the_gradient():
    function = compiled(0.5, array_mode())
    nodes = function.maker.fgraph.toposort()
    (draws,) = [node for node in nodes if isinstance(node.op, BernoulliRV)]
    assert draws.outputs[1].type.dtype == "bool"
    images = [v for node in nodes for v in node.outputs if getattr(v.type, "ndim", 0) == 2]
    assert len(images) == 3  # what is kept, y and the gradient


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity_can_be_dropped(mode):
    x = np.full((20, 20), np.nan, "float32")
    y, _ = compiled(0.5, mode)(x)
    assert set(np.unique(np.isnan(y))) == {True, False}
    assert not y[~np.isnan(y)].any()


def test_rate_zero_changes_nothing():
    x, rng = pt.matrix("x"), shared_rng(seed=0)
    y, update = dropout(x, 0, rng)
    assert y is x
    assert update == (rng, rng)
    function = pytensor.function([x], y, updates=[update], mode=array_mode())
    assert ops_of(function, BernoulliRV) == []
    np.testing.assert_array_equal(function(np.eye(2)), np.eye(2))


def test_empty_arrays_and_static_shapes():
    y, gradient = compiled(0.5, array_mode())(np.zeros((0, 4), "float32"))
    assert y.shape == gradient.shape == (0, 4)
    x = pt.tensor("x", shape=(None, 1, 3))
    assert dropout(x, 0.5, shared_rng(seed=0))[0].type.shape == (None, 1, 3)


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, "a half", None, np.nan])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match=r"rate=.* must be at least 0 and less than 1"):
        dropout(pt.matrix(), rate, shared_rng(seed=0))


def test_other_arguments_are_refused_too():
    with pytest.raises(TypeError, match=r"x must be float32 or float64, not int64"):
        dropout(pt.lmatrix(), 0.5, shared_rng(seed=0))
    with pytest.raises(TypeError, match=r"rng must be a random state, not .*: use .*shared_rng\(seed=0\)"):
        dropout(pt.matrix(), 0.5, np.random.default_rng(0))
