import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import strategies as st

from support.cases.op_checks import PLAIN, agree, draw, ops_of
from support.slow import examples, slow
from synk.compile import array_mode, debug_mode
from synk.ops import group_norm
from synk.ops.group_norm import GroupNorm, GroupNormGradient

MODES = [array_mode(), PLAIN]


def definition(x, gamma, beta, groups, eps):
    parts = x.reshape(len(x), groups, -1)
    mean, var = parts.mean(2, keepdims=True), parts.var(2, keepdims=True)
    h = ((parts - mean) / np.sqrt(var + eps)).reshape(x.shape)
    of_channel = (-1, *(1,) * (x.ndim - 2))
    return gamma.reshape(of_channel) * h + beta.reshape(of_channel)


def variables(shape, dtype, known):
    static = shape if known else (None,) * len(shape)
    x = pt.tensor("x", shape=static, dtype=dtype)
    return x, *(pt.tensor(name, shape=static[1:2], dtype=dtype) for name in ("gamma", "beta"))


@examples(
    2,
    15,
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.integers(1, 4), max_size=2),
    st.sampled_from(["float32", "float64"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_kernels_agree_with_the_definition(images, groups, members, sides, dtype, known, seed):
    shape = (images, groups * members, *sides)
    inputs = variables(shape, dtype, known)
    y = group_norm(*inputs, groups, eps=0.1)
    assert y.type.ndim == len(shape)
    outputs = [y, *pytensor.grad((y**2).sum(), list(inputs))]
    values = [draw(shape, dtype, seed) * 2 + 1, *(draw(shape[1], dtype, seed + k) for k in (1, 2))]
    result, *_ = agree([*inputs], outputs, values, rtol=1e-3 if dtype == "float32" else None)
    if images:
        expected = definition(*[value.astype("float64") for value in values], groups, 0.1)
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 if dtype == "float32" else 1e-11)


@pytest.mark.parametrize("shape", [(2, 4, 3, 2), slow((2, 4, 5)), (3, 4)])
def test_gradients_are_those_of_differences(shape):
    inputs = variables(shape, "float64", False)
    loss = (group_norm(*inputs, 2, eps=0.1) ** 3).sum()
    function = pytensor.function([*inputs], [loss, *pytensor.grad(loss, list(inputs))], mode=array_mode())
    values = [draw(shape), draw(4, seed=1), draw(4, seed=2)]
    _, *gradients = function(*values)
    for k, gradient in enumerate(gradients):
        direction = draw(gradient.shape, seed=7)
        there, back = (
            function(*values[:k], values[k] + step * direction, *values[k + 1 :])[0] for step in (1e-6, -1e-6)
        )
        np.testing.assert_allclose((gradient * direction).sum(), (there - back) / 2e-6, rtol=1e-6)


def test_each_image_is_normalised_by_itself():
    x = draw((3, 4, 5, 6)) * [[[[1.0]]], [[[10.0]]], [[[100.0]]]]
    y = pytensor.function([], group_norm(x, np.ones(4), np.zeros(4), 4), mode=array_mode())()
    np.testing.assert_allclose(y.mean((2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(y.std((2, 3)), 1, rtol=1e-4)


def test_debug_mode_finds_nothing_wrong():
    inputs = variables((3, 4, 2, 5), "float32", False)
    y = group_norm(*inputs, 2)
    outputs = [y, *pytensor.grad((y**2).sum(), list(inputs))]
    values = [draw((3, 4, 2, 5), "float32"), draw(4, "float32", 1), draw(4, "float32", 2)]
    pytensor.function([*inputs], outputs, mode=debug_mode())(*values)


def test_shapes_are_inferred_without_computing():
    inputs = variables((3, 4, 5, 2), "float64", False)
    y = group_norm(*inputs, 2)
    outputs = [v.shape for v in (y, *pytensor.grad((y**2).sum(), list(inputs)))]
    function = pytensor.function([*inputs], outputs, mode=array_mode(), on_unused_input="ignore")
    assert ops_of(function, GroupNorm | GroupNormGradient) == []
    found = function(np.zeros((3, 4, 5, 2)), np.zeros(4), np.zeros(4))
    assert [tuple(shape) for shape in found] == [(3, 4, 5, 2), (3, 4, 5, 2), (4,), (4,)]


def test_a_length_known_of_one_is_known_of_all():
    x, gamma, beta = pt.tensor4("x"), pt.tensor("gamma", shape=(6,)), pt.vector("beta")
    assert group_norm(x, gamma, beta, 3).type.shape == (None, 6, None, None)


def test_statistics_are_not_differentiated():
    inputs = variables((3, 4, 2, 2), "float64", False)
    _, mean, _ = GroupNorm(1e-5, 2)(*inputs)
    with pytest.raises(NotImplementedError, match="statistics of group_norm are not differentiated"):
        pytensor.grad(mean.sum(), inputs[0])


X = draw((2, 6, 3, 3))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"groups": 4}, ValueError, "groups=4 does not divide 6 channels; choose a divisor"),
        ({"groups": 0}, ValueError, "groups=0 must be an int, 1 or more"),
        ({"groups": 2.0}, ValueError, "groups=2.0 must be an int, 1 or more"),
        ({"eps": 0}, ValueError, "eps=0 must be positive"),
        (
            {"gamma": np.ones(5)},
            ValueError,
            "channels and of their parameters must be equal, here .* 5 and 6",
        ),
        ({"beta": np.ones(6, "float32")}, TypeError, "beta must be float64, not float32"),
        ({"x": X[..., None]}, ValueError, "x must have 2 or 3 or 4 axes, not 5"),
        ({"x": X.astype("int64")}, TypeError, "x must be float32 or float64, not int64"),
    ],
)
def test_wrong_arguments_are_named(keywords, error, message):
    with pytest.raises(error, match=f"^group_norm: .*{message}"):
        group_norm(**{"x": X, "gamma": np.ones(6), "beta": np.zeros(6), "groups": 3, **keywords})


@pytest.mark.parametrize("mode", MODES)
def test_lengths_that_differ_are_an_error_when_run(mode):
    x, gamma = pt.tensor4("x"), pt.vector("gamma")
    function = pytensor.function([x, gamma], group_norm(x, gamma, gamma, 3), mode=mode)
    with pytest.raises(
        ValueError, match=r"group_norm: .* has 6 channels; give gamma and beta .* \(6,\), not"
    ):
        function(X, np.ones(1))
    with pytest.raises(ValueError, match="group_norm: groups=3 does not divide 4 channels"):
        function(X[:, :4], np.ones(4))
