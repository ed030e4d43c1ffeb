import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.gradient import verify_grad

from support.cases.op_checks import PLAIN, agree, draw, ops_of
from support.slow import slow
from synk.compile import array_mode, debug_mode
from synk.ops import batch_norm, relu
from synk.ops.batch_norm import BatchNorm, BatchNormGradient

MODES = [array_mode(), PLAIN]


def parameters(channels=3, dtype="float64", running_dtype=None):
    """Return gamma, beta, running mean and variance as shared variables."""
    rng = np.random.default_rng(5)
    gamma, beta = rng.normal(1, 0.5, channels), rng.normal(0, 0.5, channels)
    given = {
        "gamma": gamma,
        "beta": beta,
        "mean": rng.normal(size=channels),
        "var": rng.uniform(1, 2, channels),
    }
    return [
        pytensor.shared(
            value.astype((running_dtype or dtype) if name in ("mean", "var") else dtype), name=name
        )
        for name, value in given.items()
    ]


def spread(vector, ndim):
    return vector.reshape(-1, *[1] * (ndim - 2))


def axes_of(ndim):
    return tuple(axis for axis in range(ndim) if axis != 1)


def definition(x, gamma, beta, mean, var, eps=1e-5):
    gamma, beta, mean, var = (spread(v, x.ndim) for v in (gamma, beta, mean, var))
    return gamma * (x - mean) / np.sqrt(var + eps) + beta


def in_layout(layout, *variables):
    return [v.transpose(0, 2, 3, 1) if layout == "NHWC" and v.ndim == 4 else v for v in variables]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2, 6)])
def test_training_normalises_by_the_batch_and_follows_it(shape, mode):
    x, variables = pt.tensor("x", shape=(None,) * len(shape), dtype="float64"), parameters()
    gamma, beta, old_mean, old_var = (v.get_value() for v in variables)
    y, updates = batch_norm(x, *variables, train=True, momentum=0.2, eps=1e-3)
    assert [variable for variable, _ in updates] == variables[2:]
    value = draw(shape) * 2 + 1
    result = pytensor.function([x], y, updates=updates, mode=mode)(value)
    mean, var = value.mean(axes_of(value.ndim)), value.var(axes_of(value.ndim))
    np.testing.assert_allclose(
        result, definition(value, gamma, beta, mean, var, 1e-3), rtol=1e-11, atol=1e-12
    )
    n = value.size // 3
    np.testing.assert_allclose(variables[2].get_value(), 0.8 * old_mean + 0.2 * mean, rtol=1e-12)
    np.testing.assert_allclose(variables[3].get_value(), 0.8 * old_var + 0.2 * var * n / (n - 1), rtol=1e-12)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2, 6)])
def test_without_training_the_running_statistics_are_used(shape):
    x, variables = pt.tensor("x", shape=(None,) * len(shape), dtype="float64"), parameters()
    y, updates = batch_norm(x, *variables, train=False)
    assert updates == []
    value = draw(shape)
    g = draw(shape, seed=1)
    wrt = [x, *variables[:2]]
    function = pytensor.function([x], [y, *pytensor.grad((y * g).sum(), wrt)], mode=array_mode())
    assert ops_of(function, BatchNorm) == []
    gamma, beta, mean, var = (v.get_value() for v in variables)
    result, gx, ggamma, gbeta = function(value)
    np.testing.assert_allclose(result, definition(value, gamma, beta, mean, var), rtol=1e-12, atol=1e-12)
    unit = definition(value, np.ones(3), np.zeros(3), mean, var)
    np.testing.assert_allclose(gx, g * spread(gamma / np.sqrt(var + 1e-5), len(shape)), rtol=1e-12)
    np.testing.assert_allclose(ggamma, (g * unit).sum(axes_of(len(shape))), rtol=1e-11)
    np.testing.assert_allclose(gbeta, g.sum(axes_of(len(shape))), rtol=1e-11)


@pytest.mark.parametrize(("dtype", "running_dtype"), [("float32", "float64"), ("float64", "float32")])
@pytest.mark.parametrize("train", [True, False])
def test_every_variable_keeps_its_dtype(dtype, running_dtype, train):
    x, variables = pt.matrix("x", dtype=dtype), parameters(3, dtype, running_dtype)
    y, updates = batch_norm(x, *variables, train=train)
    assert y.type.dtype == dtype
    assert all(new.type.dtype == running_dtype for _, new in updates)
    function = pytensor.function([x], y, updates=updates, mode=array_mode())
    assert function(draw((4, 3), dtype)).dtype == dtype


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_rows_changes_nothing(mode):
    x, variables = pt.tensor4("x", dtype="float64"), parameters()
    y, updates = batch_norm(x, *variables, train=True)
    gradients = pytensor.grad(y.sum(), [x, *variables[:2]])
    before = [v.get_value() for v in variables]
    results = pytensor.function([x], [y, *gradients], updates=updates, mode=mode)(np.zeros((0, 3, 2, 2)))
    assert [r.shape for r in results] == [(0, 3, 2, 2), (0, 3, 2, 2), (3,), (3,)]
    assert not results[2].any()
    assert not results[3].any()
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.get_value(), value)


@pytest.mark.parametrize("mode", MODES)
def test_a_single_value_counts_with_variance_zero(mode):
    x, variables = pt.matrix("x", dtype="float64"), parameters()
    y, updates = batch_norm(x, *variables, train=True)
    before = variables[3].get_value()
    result = pytensor.function([x], y, updates=updates, mode=mode)(np.array([[7.0, -3, 0]]))
    np.testing.assert_allclose(result, [variables[1].get_value()])
    np.testing.assert_allclose(variables[3].get_value(), 0.9 * before, atol=1e-12)


sides = st.integers(1, 4)
shapes = st.one_of(st.tuples(st.integers(0, 6), sides), st.tuples(st.integers(0, 4), sides, sides, sides))


@settings(max_examples=10, deadline=None)
@given(
    shape=shapes,
    layout=st.sampled_from(["NCHW", "NHWC"]),
    rectified=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
    known=st.booleans(),
    seed=st.integers(0, 99),
)
def test_kernels_agree_with_the_definition(shape, layout, rectified, dtype, known, seed):
    channels = shape[1]
    value, gy = in_layout(layout, draw(shape, dtype, seed) * 3 - 1, draw(shape, dtype, seed + 1))
    x, g = (
        pt.tensor(name, shape=value.shape if known else (None,) * value.ndim, dtype=dtype) for name in "xg"
    )
    vectors = [draw(channels, dtype, seed + k) + 1 for k in (2, 3)]
    gamma, beta = (pt.vector(name, dtype=dtype) for name in ("gamma", "beta"))
    outputs = BatchNorm(1e-2, rectified, layout)(x, gamma, beta)
    if known:
        assert outputs[0].type.shape == value.shape
        assert outputs[1].type.shape == outputs[2].type.shape == (channels,)
    y, mean, inv_std = agree([x, gamma, beta], outputs, [value, *vectors])
    if not shape[0]:
        return
    (nchw, n_y) = (v.transpose(0, 3, 1, 2) if v.ndim == 4 and layout == "NHWC" else v for v in (value, y))
    wide = nchw.astype("float64")
    expected = definition(wide, *vectors, wide.mean(axes_of(wide.ndim)), wide.var(axes_of(wide.ndim)), 1e-2)
    expected = np.maximum(expected, 0) if rectified else expected
    np.testing.assert_allclose(n_y, expected, rtol=1e-4, atol=1e-4 if dtype == "float32" else 1e-11)
    # A number that rounds to another side of zero would be a difference of its own.
    inputs = [g, x, gamma, beta, *(pt.vector(name, dtype=dtype) for name in ("m", "s"))]
    gradients = BatchNormGradient(rectified, layout)(*inputs)
    agree(inputs, gradients, [gy, value, *vectors, mean, inv_std], rtol=1e-3 if dtype == "float32" else None)


@pytest.mark.parametrize("rectified", [slow(False), True])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(6, 2), (3, 2, 4, 5)])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_finite_differences(shape, layout, rectified, mode):
    (value,) = in_layout(layout, draw(shape, seed=3))

    def forward(x, gamma, beta):
        return BatchNorm(1e-2, rectified, layout)(x, gamma, beta)[0]

    arguments = [value, np.array([0.5, -1.5]), np.array([0.3, 0.2])]
    verify_grad(forward, arguments, n_tests=1, rng=np.random.default_rng(0), mode=mode)


@pytest.mark.slow
def test_debug_mode_finds_nothing_wrong():
    x, variables = pt.tensor4("x", dtype="float32"), parameters(dtype="float32")
    y, updates = batch_norm(x, *variables, train=True)
    y = relu(y)
    outputs = [y, *pytensor.grad((y**2).sum(), [x, *variables[:2]])]
    pytensor.function([x], outputs, updates=updates, mode=debug_mode())(draw((2, 3, 4, 5), "float32"))


def test_shapes_are_known_and_inferred_without_computing():
    x, variables = pt.tensor("x", shape=(None, 3, None, 7), dtype="float64"), parameters()
    y, updates = batch_norm(x, *variables, train=True)
    assert y.type.shape == (None, 3, None, 7)
    gx, ggamma, _ = pytensor.grad(y.sum(), [x, *variables[:2]])
    assert gx.type.shape == (None, 3, None, 7)
    function = pytensor.function(
        [x], [y.shape, gx.shape, ggamma.shape, updates[0][1].shape], mode=array_mode()
    )
    assert ops_of(function, BatchNorm | BatchNormGradient) == []
    assert [tuple(shape) for shape in function(np.zeros((2, 3, 4, 7)))] == [
        (2, 3, 4, 7),
        (2, 3, 4, 7),
        (3,),
        (3,),
    ]


def test_ops_compare_by_what_they_do():
    assert BatchNorm(1e-5) == BatchNorm(1e-5)
    assert (
        len({BatchNorm(1e-5), BatchNorm(1e-5, relu=True), BatchNorm(1e-5, layout="NHWC"), BatchNorm(1e-4)})
        == 4
    )
    assert BatchNorm(1e-5, True).with_layout("NHWC") == BatchNorm(1e-5, True, "NHWC")
    assert BatchNormGradient(True).with_layout("NHWC") == BatchNormGradient(True, "NHWC")


def test_second_derivatives_are_refused():
    x, variables = pt.matrix("x", dtype="float64"), parameters()
    y, _ = batch_norm(x, *variables, train=True)
    first = pytensor.grad((y**2).sum(), x)
    with pytest.raises(NotImplementedError, match="second derivatives of batch_norm are not available"):
        pytensor.grad(first.sum(), x)


def test_running_statistics_are_not_differentiated():
    x, variables = pt.matrix("x", dtype="float64"), parameters()
    y, updates = batch_norm(x, *variables, train=True)
    with pytest.raises(NotImplementedError, match="of batch_norm are not differentiated; use pytensor"):
        pytensor.grad(y.sum() + updates[0][1].sum(), x)


@pytest.mark.parametrize("mode", MODES)
def test_lengths_that_differ_are_an_error_when_run(mode):
    x, gamma, beta = pt.matrix("x"), pt.vector("gamma"), pt.vector("beta")
    function = pytensor.function([x, gamma, beta], BatchNorm(1e-5)(x, gamma, beta)[0], mode=mode)
    for length in (1, 2):
        with pytest.raises(ValueError, match=f"must be equal, here they are {length} and 3"):
            function(np.ones((4, 3)), np.ones(length), np.ones(3))


GIVEN = {
    "x": pt.tensor4("x", dtype="float64"),
    **dict(zip(["gamma", "beta", "running_mean", "running_var"], parameters(), strict=True)),
    "train": True,
}


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"x": pt.tensor3("x", dtype="float64")}, ValueError, "x must have 2 or 4 axes, not 3"),
        ({"x": pt.lmatrix("x")}, TypeError, "x must be float32 or float64, not int64"),
        ({"x": pt.fmatrix("x")}, TypeError, "gamma must be float32, not float64: use gamma.astype"),
        ({"beta": pt.dmatrix("beta")}, ValueError, "beta must have 1 axes, not 2"),
        (
            {"x": pt.tensor("x", shape=(None, 4), dtype="float64")},
            ValueError,
            "must be equal, here they are 3 and 4",
        ),
        ({"gamma": parameters(4)[0], "beta": parameters(3)[1]}, ValueError, "here they are 3 and 4"),
        ({"running_var": pt.lvector("v")}, TypeError, "running_var must be float32 or float64, not int64"),
        ({"running_mean": pt.dmatrix("v")}, ValueError, "running_mean must have 1 axes, not 2"),
        ({"train": 1}, TypeError, "train must be True or False, not 1: make one function for each"),
        ({"momentum": 1.5}, ValueError, "momentum=1.5 must lie between 0 and 1"),
        ({"eps": 0}, ValueError, "eps=0 must be positive"),
    ],
)
def test_wrong_arguments_are_named(changed, error, text):
    given = {**GIVEN, **changed}
    if text.endswith("3 and 4"):  # shared variables do not tell their lengths
        given |= {
            name: pt.specify_shape(given[name], len(given[name].get_value())) for name in ("gamma", "beta")
        }
    with pytest.raises(error, match=text):
        batch_norm(**given)


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match=r"layout='NCWH' is unknown; choose one of NCHW, NHWC"):
        BatchNorm(1e-5, layout="NCWH")
