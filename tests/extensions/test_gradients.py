import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from synk.extensions.gradients import flat_gradient, flatten, unflatten

SHAPES = st.lists(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), max_size=5)
FLOATS = st.sampled_from(["float32", "float64"])


@st.composite
def parameters(draw):
    dtype = draw(FLOATS)
    return [draw(arrays(dtype, shape)) for shape in draw(SHAPES)], draw(arrays(dtype, ()))


def vector(size=3, name="p", dtype="float64"):
    return pytensor.shared(np.arange(1, size + 1, dtype=dtype), name=name)


@pytest.mark.slow
@given(parameters())
def test_unflatten_undoes_flatten(given):
    values, weight = given
    flat = flatten(values, weight)
    assert flat.shape == (sum(value.size for value in values) + 1,)
    back, back_weight = unflatten(flat, [value.shape for value in values])
    for value, again in zip([*values, weight], [*back, back_weight], strict=True):
        assert again.shape == value.shape
        assert again.dtype == value.dtype
        np.testing.assert_array_equal(again, value)


def test_arrays_are_views_of_the_vector():
    flat = np.arange(8.0)
    first, second = unflatten(flat, [(2, 3), (1,)])[0]
    assert np.shares_memory(first, flat)
    assert np.shares_memory(second, flat)


@pytest.mark.parametrize("length", [0, 6, 8])
def test_vector_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match=rf"shape \({length},\).*take \(7,\)"):
        unflatten(np.zeros(length), [(2, 3)])


def test_symbolic_layout_is_that_of_numpy():
    values, weight = [np.arange(6.0).reshape(2, 3), np.asarray(7.0), np.ones(0)], np.asarray(5.0)
    flat = flatten([pt.as_tensor_variable(value) for value in values], pt.as_tensor_variable(weight))
    back, back_weight = unflatten(flat, [value.shape for value in values])
    computed = pytensor.function([], [flat, *back, back_weight], mode="FAST_COMPILE")()
    np.testing.assert_array_equal(computed[0], flatten(values, weight))
    for again, value in zip(computed[1:], [*values, weight], strict=True):
        np.testing.assert_array_equal(again, value)
        assert again.shape == value.shape


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("floatX", ["float32", "float64"])
def test_one_process_adds_the_gradient_and_one(dtype, floatX):
    p, x = vector(dtype=dtype), pt.matrix("x", dtype=dtype)
    with pytensor.config.change_flags(floatX=floatX):
        flat, expression, [mean] = flat_gradient((x @ p).mean(), [p])
    assert (flat.dtype, expression.dtype, mean.dtype) == (dtype, dtype, dtype)
    add = pytensor.function([x], updates=[(flat, flat + expression)], mode="FAST_COMPILE")
    values = np.arange(15, dtype=dtype).reshape(5, 3)
    add(values)
    np.testing.assert_allclose(flat.get_value(), [*values.mean(0), 1])
    np.testing.assert_allclose(mean.eval(mode="FAST_COMPILE"), values.mean(0))


def test_gradient_of_a_wider_loss_has_the_dtype_of_params():
    p, x = vector(dtype="float32"), pt.matrix("x", dtype="float64")
    flat, expression, [mean] = flat_gradient((x @ p).mean(), [p])
    assert (flat.dtype, expression.dtype, mean.dtype) == ("float32", "float32", "float32")


def test_scalar_and_empty_params_have_their_place():
    scale, none = pytensor.shared(2.0, name="scale"), pytensor.shared(np.zeros((0, 3)), name="none")
    flat, expression, means = flat_gradient(scale**2 + none.sum(), [none, scale])
    assert expression.eval(mode="FAST_COMPILE").tolist() == [4.0, 1.0]
    flat.set_value(np.asarray([12.0, 3.0]))
    assert [mean.eval(mode="FAST_COMPILE").tolist() for mean in means] == [[], 4.0]


P, Q, NARROW = vector(name="p"), vector(name="q"), vector(name="q", dtype="float32")
COUNTS = pytensor.shared(np.arange(3), name="counts")
RNG = pytensor.shared(np.random.default_rng(1), name="rng")
NOT_SHARED = r"params\[0\].* is not a shared variable"


@pytest.mark.parametrize(
    ("loss", "params", "error", "message"),
    [
        (
            P.sum() + NARROW.sum(),
            [P, NARROW],
            TypeError,
            r"\[1\] \('q'\) has dtype float32 but params\[0\] \('p'\)",
        ),
        ((P * COUNTS).sum(), [P, COUNTS], TypeError, r"params\[1\] \('counts'\) has dtype int64"),
        (P.sum(), [RNG], TypeError, r"params\[0\] \('rng'\)"),
        *((P.sum(), [param], TypeError, NOT_SHARED) for param in (pt.vector("x"), np.ones(3), 2.0)),
        (P.sum(), [P, Q], ValueError, r"does not depend on params\[1\] \('q'\)"),
        ((P * Q).sum(), [P, Q, Q], ValueError, r"params\[1\] \('q'\) is listed 2 times"),
        (P.sum(), [], ValueError, "params is empty"),
        (P**2, [P], ValueError, r"loss has 1 dimensions.*loss\.mean\(\)"),
        *((loss, [P], TypeError, "loss") for loss in (pt.lscalar("count"), 1.5, None)),
    ],
)
def test_wrong_params_and_losses_are_named(loss, params, error, message):
    with pytest.raises(error, match=message):
        flat_gradient(loss, params)
