import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import deep_copy_op, view_op
from pytensor.raise_op import Assert
from pytensor.tensor.basic import scalar_from_tensor, tensor_from_scalar

from synk.compile import array_mode
from synk.compile.compat import optional_class

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")


def test_copies_views_and_conversions(compare):
    x, s = pt.matrix("x"), pt.scalar("s")
    outputs = [
        deep_copy_op(x),
        view_op(x),
        view_op(x) + 1,
        deep_copy_op(s),
        tensor_from_scalar(scalar_from_tensor(s)),
    ]
    compare([x, s], outputs, [np.ones((2, 3), x.dtype), np.asarray(2, s.dtype)])


def test_assertion():
    x = pt.vector("x")
    function = pytensor.function([x], Assert("x must sum to 1")(x, pt.eq(x.sum(), 1)), mode=array_mode())
    np.testing.assert_array_equal(function(np.array([0.25, 0.75], x.dtype)), [0.25, 0.75])
    with pytest.raises(AssertionError, match="x must sum to 1"):
        function(np.array([1, 1], x.dtype))


def test_inner_graph_is_a_program_of_its_own(compare):
    x, y = pt.matrix("x"), pt.matrix("y")
    both = OpFromGraph([x, y], [pt.exp(x) @ y, x])
    single = OpFromGraph([x], [pt.special.softmax(x * 2, axis=1)])
    outputs = [*both(x + 1, y), single(x), single(single(x)), both(single(x), y)[0]]
    values = [np.eye(3, dtype=x.dtype), np.arange(9, dtype=x.dtype).reshape(3, 3)]
    compare([x, y], outputs, values, rtol=1e-5)


def test_inner_graph_leaves_its_inputs_alone(compare):
    x = pt.dvector("x")
    inner = OpFromGraph([x], [x[1:].set(0.0), x + 1, x])
    z = x * 2
    compare([x], [*inner(z), z], [np.arange(3.0)])


def test_inner_graph_reads_before_it_destroys(compare):
    x = pt.dvector("x")
    a = pt.exp(x)
    inner = OpFromGraph([x], [a[1:].set(0.0), a.sum()])
    compare([x], inner(x), [np.arange(3.0)])


def test_error_in_an_inner_graph_names_both_nodes():
    x, y = pt.vector("x"), pt.vector("y")
    product = OpFromGraph([x, y], [x * y], name="inner")
    function = pytensor.function([x, y], product(x, y), mode=array_mode())
    with pytest.raises(ValueError, match="differ along axis 0") as caught:
        function(np.ones(2, x.dtype), np.ones(3, x.dtype))
    notes = "\n".join(caught.value.__notes__)
    assert "Mul(" in notes
    assert "inner" in notes


@pytest.mark.parametrize("condition", [0, 1])
def test_choice_between_branches(compare, condition):
    c, x, y = pt.lscalar("c"), pt.vector("x"), pt.vector("y")
    outputs = [ifelse(c, x, y), *ifelse(c, [x * 2, y], [y + 1, x])]
    compare([c, x, y], outputs, [np.asarray(condition), np.ones(2, x.dtype), np.zeros(2, x.dtype)])
