import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import deep_copy_op, view_op
from pytensor.graph.replace import vectorize_graph
from pytensor.raise_op import Assert
from pytensor.tensor.basic import scalar_from_tensor, tensor_from_scalar

from support.cases.unary_op import UnaryOp
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


@pytest.mark.parametrize("condition", [0, 1])
def test_choice_between_branches(compare, condition):
    c, x, y = pt.lscalar("c"), pt.vector("x"), pt.vector("y")
    outputs = [ifelse(c, x, y), *ifelse(c, [x * 2, y], [y + 1, x])]
    compare([c, x, y], outputs, [np.asarray(condition), np.ones(2, x.dtype), np.zeros(2, x.dtype)])


def test_inner_graph_in_an_inner_graph(compare):
    x = pt.dmatrix("x")
    inner = OpFromGraph([x], [pt.exp(x)[1:].set(0.0), x.T])
    outer = OpFromGraph([x], [inner(x)[0] + inner(inner(x)[1])[1], x])
    compare([x], [*outer(x * 2), pytensor.grad(outer(x)[0].sum(), x)], [np.arange(9.0).reshape(3, 3)])


def test_inner_graph_on_a_batch(compare):
    x = pt.dmatrix("x")
    inner = OpFromGraph([x], [pt.exp(x)[1:].set(0.0)])
    batch = pt.dtensor3("batch")
    compare([batch], [vectorize_graph(inner(x), {x: batch})], [np.arange(12.0).reshape(2, 3, 2)])


def test_random_numbers_in_an_inner_graph():
    generator = pytensor.shared(np.random.default_rng(3), borrow=False)
    state, size = generator.type(), pt.lscalar("size")
    draw = OpFromGraph([state, size], list(pt.random.normal(size=size, rng=state, return_next_rng=True)))
    after, numbers = draw(generator, 3)
    function = pytensor.function([], numbers, updates={generator: after}, mode=array_mode())
    assert function.vm.jit_fn.host_nodes == ()
    expected = np.random.default_rng(3)
    for _ in range(2):
        np.testing.assert_array_equal(function(), expected.standard_normal(3))


class Unknown(UnaryOp):
    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] * 2


def test_host_nodes_of_inner_graphs_are_reported():
    c, x = pt.bscalar("c"), pt.dvector("x")
    inner = OpFromGraph([x], [OpFromGraph([x], [Unknown()(x)])(x) + 1])
    outputs = [inner(x), ifelse(c, Unknown()(x), x)]
    function = pytensor.function([c, x], outputs, mode=array_mode())
    assert [type(node.op) for node in function.vm.jit_fn.host_nodes] == [Unknown, Unknown]
    for result, expected in zip(function(1, np.ones(2)), [[3, 3], [2, 2]], strict=True):
        np.testing.assert_array_equal(result, expected)
