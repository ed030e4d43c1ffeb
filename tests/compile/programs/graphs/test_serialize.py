import sys
import threading
from importlib import import_module

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors

from synk.compile import array_mode, dumps, loads
from synk.compile.programs.graphs.script_rules import _tables, rules_of_script
from synk.compile.programs.graphs.serialize import topological
from synk.values.by_value import Code


class Held(Op):
    """An Op that holds whatever it is given."""

    def __init__(self, thing):
        self.thing = thing

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        raise NotImplementedError


class Identities:
    """Give shared variables numbers, and find them again."""

    def __init__(self):
        self.variables = []

    def share(self, variable):
        assert variable not in self.variables, "asked twice"
        self.variables.append(variable)
        return len(self.variables) - 1

    def round_trip(self, inputs, outputs):
        return loads(dumps(inputs, outputs, self.share), self.variables.__getitem__)


def refuse(_):
    raise AssertionError("there is no shared variable")


def round_trip(inputs, outputs):
    return loads(dumps(inputs, outputs, refuse), refuse)


def evaluate(inputs, outputs, *values, **keywords):
    return pytensor.function(inputs, outputs, mode=array_mode(), on_unused_input="ignore", **keywords)(
        *values
    )


def chain(length):
    x = pt.vector("x", dtype="float64")
    y = x
    for k in range(length):
        y = pt.tanh(y) if k % 2 else pt.exp(y)
    return x, y


def test_values_names_and_types_survive():
    x, y = pt.dmatrix("x"), pt.tensor("y", dtype="float32", shape=(None, 1))
    z = pt.exp(x @ x + y)
    z.name = "z"
    (a, b), (c, total) = round_trip([x, y], [z, z.sum()])
    assert [v.name for v in (a, b, c, total)] == ["x", "y", "z", None]
    assert [v.type for v in (a, b, c, total)] == [x.type, y.type, z.type, pt.dscalar().type]
    assert c.owner is not z.owner
    assert total.owner.inputs[0] is c
    values = [np.eye(2), np.ones((2, 1), "float32")]
    np.testing.assert_allclose(evaluate([a, b], c, *values), evaluate([x, y], z, *values))


def test_roots_keep_their_order_used_or_not():
    x, y, z = pt.dscalars("xyz")
    inputs, (output,) = round_trip([z, x, y], [x - y])
    assert [v.name for v in inputs] == ["z", "x", "y"]
    assert evaluate(inputs, output, 9.0, 5.0, 2.0) == 3


def test_outputs_may_repeat_and_be_roots():
    x, s = pt.dvector("x"), pytensor.shared(1.0, name="s")
    one, y = pt.constant(1.5, name="one"), x * s
    (a,), (b, c, d, e, f) = Identities().round_trip([x], [x, y, y, one, s])
    assert a is b
    assert c is d
    assert f is s
    assert (e.data, e.name, e.type) == (1.5, "one", one.type)


def test_no_graph_at_all():
    assert round_trip([], []) == ([], [])


def test_shared_variables_travel_by_identity_and_once():
    s, t = pytensor.shared(np.zeros(3)), pytensor.shared(np.ones(3))
    x = pt.dvector("x")
    identities = Identities()
    payload = dumps([x], [x + s, s * t, s], identities.share)
    s.set_value(np.full(3, 5.0))
    _, (a, b, c) = loads(payload, identities.variables.__getitem__)
    assert c is s
    assert s in ancestors([a])
    assert t in ancestors([b])
    np.testing.assert_array_equal(evaluate([], b), [5, 5, 5])


def test_an_input_with_an_owner_is_a_root():
    x = pt.dvector("x")
    y = x * 2
    (a,), (b,) = round_trip([y], [y + 1])
    assert a.owner is None
    np.testing.assert_array_equal(evaluate([a], b, np.ones(2)), [2, 2])


def test_random_variables():
    rng = pytensor.shared(np.random.default_rng(3))
    next_rng, x = pt.random.normal(size=3, rng=rng, return_next_rng=True)
    _, (a, b) = Identities().round_trip([], [next_rng, x])
    np.testing.assert_array_equal(evaluate([], b), evaluate([], x))
    assert b.owner is a.owner


@pytest.mark.slow
def test_a_long_chain_of_nodes_needs_no_recursion():
    x, y = chain(5 * sys.getrecursionlimit())
    _, (copy,) = round_trip([x], [y])
    assert [node.op for node in topological([copy])] == [node.op for node in topological([y])]


def test_inner_graphs_travel():
    x, y, s = pt.dmatrix("x"), pt.dmatrix("y"), pytensor.shared(np.eye(2))
    inner = OpFromGraph([x, y], [x @ y, pt.special.softmax(x, axis=1)])
    outer = OpFromGraph([x], inner(x, x + 1))
    outputs = [*inner(x, s), *outer(y)]
    inputs, copies = Identities().round_trip([x, y], outputs)
    values = [np.arange(4.0).reshape(2, 2), np.ones((2, 2))]
    for result, expected in zip(
        evaluate(inputs, copies, *values), evaluate([x, y], outputs, *values), strict=True
    ):
        np.testing.assert_allclose(result, expected)


@pytest.mark.slow
def test_a_deep_inner_graph_needs_no_recursion():
    x, y = chain(1_500)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)  # PyTensor itself may recurse where it builds the Op
    z = pt.dvector("z")
    output = OpFromGraph([x], [y])(z)
    sys.setrecursionlimit(limit)
    _, (b,) = round_trip([z], [output])
    assert len(b.owner.op.fgraph.toposort()) == 1_500


def test_compiled_functions_stay():
    op = Held(1)
    op._fn = lambda: None
    _, (b,) = round_trip([], [op(pt.dvector("x"))])
    assert b.owner.op._fn is None


def test_an_op_travels_that_was_differentiated():
    x, w = pt.matrix("x"), pt.matrix("w")
    gradient = pytensor.grad(pt.sqr(pt.einsum("ij,jk->ik", x, w)).sum(), w)  # the Op keeps how it was made
    (x2, w2), (travelled,) = loads(dumps([x, w], [gradient], None), None)
    values = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(2, 4)
    function = pytensor.function([x2, w2], travelled, mode=array_mode())
    np.testing.assert_allclose(function(*values), 2 * values[0].T @ (values[0] @ values[1]))


def test_an_op_travels_that_was_computed_in_python():
    x = pt.dmatrix("x")
    gradient = pytensor.grad(pt.prod(x, axis=1).sum(), x)  # of another Op's reduction, which NumPy lacks
    values = np.array([[2.0, 0.0, 3.0], [4.0, 5.0, 6.0]])
    pytensor.function([x], gradient, mode=pytensor.compile.Mode("py", None))(
        values
    )  # keeps what it has called
    (x2,), (travelled,) = round_trip([x], [gradient])
    np.testing.assert_allclose(evaluate([x2], travelled, values), [[0, 6, 0], [30, 24, 20]])


def test_scan_travels():
    x = pt.dvector("x")
    sums = pytensor.scan(
        lambda row, state: state + row,
        sequences=x,
        outputs_info=pt.zeros((), "float64"),
        return_updates=False,
    )
    np.testing.assert_array_equal(evaluate([x], sums, np.ones(3)), [1, 2, 3])
    (a,), (b,) = round_trip([x], [sums])
    np.testing.assert_array_equal(evaluate([a], b, np.ones(3)), [1, 2, 3])


def test_variables_inside_an_op_travel_with_what_leads_to_them():
    x, y = chain(2_000)
    (a,), (b,) = round_trip([x], [Held([y, x])(x)])
    held, root = b.owner.op.thing
    assert root is a
    assert len(topological([held])) == 2_000


def test_what_cannot_travel_is_named():
    x = pt.dvector("x")
    with pytest.raises(TypeError, match=r"Op .*Held.* of node Held\(x\) cannot be pickled: .*lock") as caught:
        dumps([x], [Held(threading.Lock())(x) + 1], refuse)
    assert "make it where it is used" in str(caught.value)


def test_topological_order():
    x, y = pt.dvectors("xy")
    a = x + y
    b = a * x
    c = b - a
    assert topological([c, a]) == [a.owner, b.owner, c.owner]
    assert topological([c], [a]) == [b.owner, c.owner]
    assert topological([x]) == []


@pytest.mark.slow
def test_tables_of_other_libraries_do_not_travel():
    import_module("pytensor.link.numba.dispatch")  # as the first function of PyTensor's own linker does
    tables = {table.__module__ for table in _tables(0)}
    assert "pytensor.link.numba.dispatch.basic" in tables
    assert all(module.startswith(("synk.", "pytensor.")) for module in tables)
    assert not [kind for _, kind, _ in rules_of_script([], Code()) if kind.__module__.startswith("numba")]
