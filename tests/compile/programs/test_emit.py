import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph

from synk.compile import emit
from synk.compile.programs.emit import last_uses
from synk.compile.programs.passes.plan import PASSES
from synk.ops import fuse, layout


def test_last_uses():
    x, y = pt.vectors("xy")
    a = x + y
    b = a * a
    c = b - x
    nodes = [a.owner, b.owner, c.owner]
    assert last_uses(nodes, [c]) == [[y], [a], [b, x]]
    assert last_uses(nodes, [c, a]) == [[y], [], [b, x]]
    assert last_uses(nodes, [b]) == [[y], [a], [x, c]]


def test_unused_outputs_are_deleted():
    x = pt.vector("x")
    _first, second = pt.split(x, [1, 2], axis=0)
    program = emit(FunctionGraph([x], [second], clone=False), np)
    unused = re.search(r"(v\d+), v\d+ = Split", program.source)[1]
    assert re.search(rf"del .*\b{unused}\b", program.source)
    np.testing.assert_array_equal(program(np.arange(3.0))[0], [1, 2])


def test_outputs_may_be_inputs_constants_and_repeats():
    x = pt.vector("x", dtype="float64")
    one, y = pt.constant(1.0), x + 1
    value = np.zeros(2)
    outputs = emit(FunctionGraph([x], [x, one, y, y], clone=False), np)(value)
    assert outputs[0] is value
    assert outputs[2] is outputs[3]
    assert type(outputs[1]) is np.ndarray


def test_results_without_axes_are_arrays():
    x = pt.vector("x")
    (total,) = emit(FunctionGraph([x], [x.sum()], clone=False), np)(np.ones(3))
    assert type(total) is np.ndarray
    assert total.shape == ()


def test_no_outputs():
    x = pt.vector("x")
    assert emit(FunctionGraph([x], [], clone=False), np)(np.ones(3)) == ()


@pytest.mark.slow
def test_a_long_chain_of_nodes_needs_no_recursion():
    x = pt.vector("x")
    y = x
    for _ in range(5_000):
        y = -y
    (result,) = emit(FunctionGraph([x], [y], clone=False), np)(np.ones(2))
    np.testing.assert_array_equal(result, [1, 1])


def test_error_from_outside_has_no_node():
    x = pt.vector("x")
    program = emit(FunctionGraph([x], [x + 1], clone=False), np)
    with pytest.raises(TypeError) as caught:
        program(np.ones(2), np.ones(2))
    assert program.failed_node(caught.value) is None


def test_the_docs_list_the_passes_in_the_order_in_which_they_decide():
    text = (Path(__file__).parents[3] / "docs" / "linker.rst").read_text()
    assert re.findall(r"^\d\. ``(\w+)``: ", text, re.MULTILINE) == list(PASSES)
    for name in PASSES:
        import_module(f"synk.compile.programs.passes.{name}")
    for rewrite in (fuse, layout):
        assert f"({rewrite.POSITION})" in text
