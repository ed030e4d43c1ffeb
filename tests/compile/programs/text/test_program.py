import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.fg import FunctionGraph

from synk.compile import array_mode, dumps, emit, loads
from synk.compile.programs.text.program import blame, describe


def notes(call, *values):
    """Return the notes on what a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(*values)
    assert pickle.loads(pickle.dumps(caught.value)).__notes__ == caught.value.__notes__
    return "\n".join(caught.value.__notes__)


def two_products():
    x, y = pt.dmatrices("xy")
    return [x, y], [pt.exp(x).sum(), (x @ y).sum()]


def test_an_error_names_node_place_line_and_inputs():
    inputs, outputs = two_products()
    function = pytensor.function(inputs, outputs, mode=array_mode())
    order = [str(node.op) for node in function.maker.fgraph.toposort()]
    note = notes(function, np.ones((2, 3)), np.ones((4, 5)).T)
    assert "Apply node that caused the error: Dot22(x, y)" in note
    assert f"Node {order.index('Dot22')} of {len(order)}" in note
    assert f'File "{__file__}"' in note
    assert "in two_products" in note
    assert "return [x, y], [pt.exp(x).sum(), (x @ y).sum()]" in note
    assert "x: float64 (2, 3)\n" in note
    assert "y: float64 (5, 4), strides (8, 40) bytes" in note


def test_the_type_stays_and_the_text_too():
    inputs, outputs = two_products()
    function = pytensor.function(inputs, outputs, mode=array_mode())
    with pytest.raises(ValueError, match=r"^shapes \(2,3\) and \(2,3\) not aligned") as caught:
        function(np.ones((2, 3)), np.ones((2, 3)))
    assert type(caught.value) is ValueError


def test_an_error_after_a_journey_names_the_line():
    inputs, outputs = loads(dumps(*two_products(), None), None)
    note = notes(pytensor.function(inputs, outputs, mode=array_mode()), np.ones((2, 3)), np.ones((2, 3)))
    assert "in two_products" in note
    assert "return [x, y], [pt.exp(x).sum(), (x @ y).sum()]" in note


def test_an_error_in_an_inner_graph_names_both_nodes():
    x, y = pt.dmatrices("xy")
    inner = OpFromGraph([x, y], [pt.exp(x[5])])
    note = notes(pytensor.function([x, y], inner(x, y), mode=array_mode()), np.ones((2, 3)), np.ones((1, 1)))
    assert note.index("Subtensor") < note.index("OpFromGraph")
    assert "float64 (2, 3)" in note


def test_values_without_axes_are_told():
    x, k = pt.dvector("x"), pt.lscalar("k")
    program = emit(FunctionGraph([x, k], [x[k]], clone=False), np)
    note = notes(program, np.ones(3), np.asarray(7))
    assert "x: float64 (3,)" in note
    assert "int64 () = 7" in note


def test_gradients_name_what_they_are_made_of():
    x = pt.dvector("x")
    y = pt.log(x)
    y.tag.trace, root = [], y.owner
    y.owner.inputs[0].tag.trace = []
    assert "No line of yours" in blame(root, "0 of 1", [])
    z = y * 2
    w = pt.exp(z)
    w.tag.trace = []
    text = blame(w.owner, "1 of 2", [])
    assert "in a gradient or a rewrite" in text
    assert "z = y * 2" in text
    assert "Inputs" not in text


def test_many_lines_are_cut():
    x = pt.dvector("x")
    y = x + 1
    y.tag.trace = [[("model.py", number, "f", "text")] for number in range(9)]
    text = blame(y.owner, "0 of 1", [])
    assert "line 2, in f" in text
    assert "line 3, in f" not in text
    assert "and 6 more" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.ones((2, 3), "float32"), "float32 (2, 3)"),
        (np.ones((2, 3), "float32").T, "float32 (3, 2), strides (4, 12) bytes"),
        (np.float64(2.5), "float64 () = 2.5"),
        (np.asarray(True), "bool () = True"),
        (np.random.default_rng(0), "Generator"),
        (None, "NoneType"),
    ],
)
def test_descriptions(value, expected):
    assert describe(value) == expected
