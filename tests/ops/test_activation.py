import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from support.cases.op_checks import PLAIN, agree, draw, ops_of, values_of
from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.programs.elementwise.fusion import TAG
from synk.ops import relu
from synk.ops.activation import rectify

FLOATS = ["float32", "float64"]
AWKWARD = [-np.inf, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2.5, np.inf, np.nan]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), slow((9,)), (3, 0), (2, 3, 4, 5)])
def test_negative_numbers_become_zero(shape, dtype):
    x = pt.tensor("x", shape=(None,) * len(shape), dtype=dtype)
    value = draw(shape, dtype)
    (y,) = agree([x], [relu(x)], [value])
    np.testing.assert_array_equal(y, np.maximum(value, 0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_stays_alone_and_in_a_kernel(dtype):
    x = pt.vector("x", dtype=dtype)
    value = np.array(AWKWARD, dtype)
    alone, fused = agree([x], [relu(x), relu(-x) * 2], [value])
    np.testing.assert_array_equal(alone, np.maximum(value, 0))
    np.testing.assert_array_equal(fused, np.maximum(-value, 0) * 2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_is_that_of_the_output_where_it_is_positive(dtype):
    x, g = pt.vector("x", dtype=dtype), pt.vector("g", dtype=dtype)
    gradient = pytensor.grad(None, x, known_grads={relu(x): g})
    values = (
        np.array(AWKWARD, dtype),
        np.array([np.nan, np.inf, -np.inf, np.nan, 1, 2, np.inf, np.nan, 3], dtype),
    )
    (gx,) = agree([x, g], [gradient], values)
    np.testing.assert_array_equal(gx, np.where(values[0] > 0, values[1], 0))


def test_the_gradient_keeps_the_output_not_the_input():
    x, g = pt.vector("x"), pt.vector("g")
    y = relu(x)
    gradient = pytensor.grad(None, x, known_grads={y: g}, disconnected_inputs="raise")
    assert x not in list(ancestors([gradient], blockers=[y]))


def test_second_derivatives_are_those_of_pieces():
    x = pt.vector("x")
    (first,) = [pytensor.grad((relu(x) ** 3).sum(), x)]
    (second,) = agree([x], [pytensor.grad(first.sum(), x)], [np.array([-1.0, 2.0])])
    np.testing.assert_allclose(second, [0, 12])


def test_it_fuses_with_its_neighbours():
    x, y = pt.matrix("x"), pt.matrix("y")
    mode = array_mode(ArrayLinker(native=False)).including(TAG)
    function = pytensor.function([x, y], relu(x * 2 + y) - 1, mode=mode)
    (node,) = function.maker.fgraph.toposort()
    assert isinstance(node.op.scalar_op, Composite)


def test_it_is_one_op_of_one_kind():
    x = pt.vector("x")
    assert relu(x).owner.op == relu(x).owner.op
    function = pytensor.function([x], [relu(x) + 1, relu(x) + 2], mode=PLAIN)
    assert len([op for op in ops_of(function, Elemwise) if op == rectify]) == 1


def test_pytensor_compiles_it_in_c():
    x = pt.vector("x", dtype="float32")
    text = rectify.scalar_op.c_code(None, "relu", ["x"], ["y"], {})
    assert text == "y = x < 0 ? 0 : x;"
    value = np.array(AWKWARD, "float32")
    (y,) = values_of([x], [relu(x)], [value], PLAIN)
    np.testing.assert_array_equal(y, np.maximum(value, 0))


@pytest.mark.parametrize("dtype", ["int64", "float16", "complex64"])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(
        TypeError, match=rf"x must be float32 or float64, not {dtype}: use x.astype\('float32'\)"
    ):
        relu(pt.vector("x", dtype=dtype))
