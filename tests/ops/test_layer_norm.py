import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.gradient import verify_grad

from support.cases.op_checks import PLAIN, agree, draw, ops_of
from synk.compile import array_mode, debug_mode
from synk.ops import layer_norm
from synk.ops.layer_norm import LayerNorm, LayerNormGradient

MODES = [array_mode(), PLAIN]


def definition(x, gamma, beta, eps):
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return gamma * (x - mean) / np.sqrt(var + eps) + beta


def variables(shape, n_axes, dtype, known):
    static = shape if known else (None,) * len(shape)
    x = pt.tensor("x", shape=static, dtype=dtype)
    last = static[len(shape) - n_axes :]
    return x, *(pt.tensor(name, shape=last, dtype=dtype) for name in ("gamma", "beta"))


@settings(max_examples=10, deadline=None)
@given(
    leading=st.lists(st.integers(0, 4), max_size=2),
    last=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    dtype=st.sampled_from(["float32", "float64"]),
    known=st.booleans(),
    seed=st.integers(0, 99),
)
def test_kernels_agree_with_the_definition(leading, last, dtype, known, seed):
    shape = (*leading, *last)
    x, gamma, beta = variables(shape, len(last), dtype, known)
    op = LayerNorm(1e-2, len(last))
    outputs = op(x, gamma, beta)
    if known:
        assert [v.type.shape for v in outputs] == [shape, tuple(leading), tuple(leading)]
    values = [draw(shape, dtype, seed) * 2 + 1, draw(last, dtype, seed + 1), draw(last, dtype, seed + 2)]
    y, mean, inv_std = agree([x, gamma, beta], outputs, values)
    wide = [value.astype("float64") for value in values]
    atol = 1e-4 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(y, definition(*wide, 1e-2), rtol=1e-4, atol=atol)
    g = x.type("g")
    rows = [v.type(name) for v, name in zip(outputs[1:], ("mean", "inv_std"), strict=True)]
    gradients = LayerNormGradient(len(last), 1e-2)(g, x, gamma, *rows)
    agree(
        [g, x, gamma, *rows],
        gradients,
        [draw(shape, dtype, seed + 3), *values[:2], mean, inv_std],
        rtol=1e-3 if dtype == "float32" else None,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "n_axes"), [((4, 6), 1), ((2, 3, 4), 2), ((5,), 1), ((2, 2, 5), 1)])
def test_gradients_are_those_of_finite_differences(shape, n_axes, mode):
    last = shape[len(shape) - n_axes :]
    arguments = [draw(shape), draw(last, seed=1), draw(last, seed=2)]
    verify_grad(
        lambda x, gamma, beta: layer_norm(x, gamma, beta, eps=1e-2),
        arguments,
        n_tests=1,
        rng=np.random.default_rng(0),
        mode=mode,
    )


def test_debug_mode_finds_nothing_wrong():
    x, gamma, beta = variables((3, 4, 5), 1, "float32", False)
    y = layer_norm(x, gamma, beta)
    outputs = [y, *pytensor.grad((y**2).sum(), [x, gamma, beta])]
    values = [draw((3, 4, 5), "float32"), draw(5, "float32", 1), draw(5, "float32", 2)]
    pytensor.function([x, gamma, beta], outputs, mode=debug_mode())(*values)


def test_shapes_are_inferred_without_computing():
    x, gamma, beta = variables((3, 4, 5), 2, "float64", False)
    y = layer_norm(x, gamma, beta)
    gradients = pytensor.grad((y**2).sum(), [x, gamma, beta])
    function = pytensor.function(
        [x, gamma, beta], [v.shape for v in (y, *gradients)], mode=array_mode(), on_unused_input="ignore"
    )
    assert ops_of(function, LayerNorm | LayerNormGradient) == []
    found = function(np.zeros((3, 4, 5)), np.zeros((4, 5)), np.zeros((4, 5)))
    assert [tuple(shape) for shape in found] == [(3, 4, 5), (3, 4, 5), (4, 5), (4, 5)]


def test_a_length_known_of_one_is_known_of_all():
    x, gamma = pt.matrix("x"), pt.tensor("gamma", shape=(7,))
    assert layer_norm(x, gamma, gamma).type.shape == (None, 7)


def test_statistics_are_not_differentiated():
    x, gamma, beta = variables((3, 4), 1, "float64", False)
    _, mean, _ = LayerNorm(1e-5, 1)(x, gamma, beta)
    with pytest.raises(NotImplementedError, match="statistics of layer_norm are not differentiated"):
        pytensor.grad(mean.sum(), x)


@pytest.mark.parametrize(
    ("x", "gamma", "beta", "eps", "error", "text"),
    [
        (pt.fmatrix(), pt.dvector(), pt.fvector(), 1e-5, TypeError, "gamma must be float32, not float64"),
        (pt.dmatrix(), pt.dvector(), pt.fvector(), 1e-5, TypeError, "beta must be float64, not float32"),
        (pt.dmatrix(), pt.dvector(), pt.dmatrix(), 1e-5, ValueError, "beta must have 1 axes, not 2"),
        (pt.dvector(), pt.dmatrix(), pt.dmatrix(), 1e-5, ValueError, "gamma has 2 axes, x 1"),
        (pt.dvector(), pt.dscalar(), pt.dscalar(), 1e-5, ValueError, "n_axes=0 must be 1 or more"),
        (pt.dvector(), pt.dvector(), pt.dvector(), -1, ValueError, "eps=-1 must be positive"),
        (
            pt.lvector(),
            pt.dvector(),
            pt.dvector(),
            1e-5,
            TypeError,
            "x must be float32 or float64, not int64",
        ),
    ],
)
def test_wrong_arguments_are_named(x, gamma, beta, eps, error, text):
    with pytest.raises(error, match=text):
        layer_norm(x, gamma, beta, eps=eps)


@pytest.mark.parametrize("mode", MODES)
def test_lengths_that_differ_are_an_error(mode):
    x, gamma = pt.tensor("x", shape=(None, 4)), pt.tensor("gamma", shape=(3,))
    with pytest.raises(ValueError, match="lengths of the last axes of x and of its parameters .* 3 and 4"):
        layer_norm(x, gamma, gamma)
    x, gamma = pt.matrix("x"), pt.vector("gamma")
    function = pytensor.function([x, gamma], layer_norm(x, gamma, gamma), mode=mode)
    for length in (1, 2):
        with pytest.raises(ValueError, match=rf"shape \({length},\) does not fit the last axes of x, \(3,\)"):
            function(np.ones((4, 3)), np.ones(length))
