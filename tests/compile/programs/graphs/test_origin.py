import inspect
import pickle
import sysconfig
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply

import synk.compile.linker
from synk.compile import dumps, loads
from synk.compile.programs.graphs.origin import (
    LibraryFiles,
    nearest_lines,
    pack,
    unpack,
    user_lines,
    write_line,
)
from synk.compile.programs.graphs.serialize import topological


def here(offset=0):
    """Return file and number of the line that calls."""
    return __file__, inspect.currentframe().f_back.f_lineno + offset


def places(variable):
    return [line[:2] for line in user_lines(variable)]


def travelled(inputs, outputs):
    return loads(dumps(inputs, outputs, None), None)[1]


def no_lines(variable):
    variable.tag.trace = []
    return variable


def test_the_innermost_line_of_the_user_is_found():
    def build(x):
        return pt.special.softmax(x @ x, axis=1), here()

    product, place = build(pt.dmatrix("x"))
    assert places(product) == [place]
    assert user_lines(product)[0][2:] == ("build", "return pt.special.softmax(x @ x, axis=1), here()")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (np.__file__, False),
        (__file__, False),
        ("<stdin>", False),
        (pytensor.__file__, True),
        (synk.compile.linker.__file__, True),
        (synk.__file__, True),
        ("<frozen runpy>", True),
        (str(Path(sysconfig.get_path("stdlib")) / "functools.py"), True),
        (str(Path(sysconfig.get_path("stdlib")) / "site-packages" / "models.py"), False),
    ],
)
def test_libraries_are_not_the_user(file, expected):
    assert LibraryFiles()[file] is expected


def test_a_library_below_the_users_own_op_does_not_hide_it():
    library, user = (pytensor.__file__, 1, "f", "text"), (__file__, 2, "g", "more")
    variable = pt.dvector()
    variable.tag.trace = [[library, user, library]]
    assert user_lines(variable) == (user,)
    variable.tag.trace = [[user, library], [user], [library], []]
    assert user_lines(variable) == (user,)
    variable.tag.trace = []
    assert user_lines(variable) == ()
    del variable.tag.trace
    assert user_lines(variable) == ()


def test_the_nearest_line_stands_in_for_a_missing_one():
    x = pt.dvector("x")
    y, place = pt.exp(x), here()
    z = no_lines(no_lines(pt.log(y)) + no_lines(y * 2))
    assert [line[:2] for line in nearest_lines(z.owner)] == [place]
    assert nearest_lines(no_lines(pt.exp(no_lines(x))).owner) == ()


def test_lines_travel_with_the_graph():
    x = pt.dvector("x")
    y, first = pt.exp(x), here()
    z, second = no_lines(pt.log(y)) + 1, here()
    (copy,) = travelled([x], [z])
    assert places(copy) == [second]
    assert places(copy.owner.inputs[0]) == []
    assert places(copy.owner.inputs[0].owner.inputs[0]) == [first]


def test_lines_of_inner_graphs_travel():
    x = pt.dvector("x")
    y, place = pt.exp(x), here()
    (copy,) = travelled([x], [OpFromGraph([x], [y + 1])(x)])
    (exponent,) = [node for node in copy.owner.op.fgraph.toposort() if str(node.op) == "Exp"]
    assert places(exponent.outputs[0]) == ([place] if isinstance(exponent, Apply) else [])  # frozen: no tags


def test_lines_are_told_once():
    x = y = pt.dvector("x")
    for _ in range(100):
        y = pt.exp(y)
    nodes = topological([y], [x])
    different, order = pack(nodes)
    assert len(different) == 1
    assert len(order) == 100
    assert len(pickle.dumps((different, order))) < 600
    unpack(nodes[:1], ([()], [0]))
    assert pack(nodes)[1] == [0] + [1] * 99


def test_a_line_is_written_as_in_tracebacks():
    assert (
        write_line(("model.py", 3, "build", "y = x + 1"))
        == 'File "model.py", line 3, in build\n    y = x + 1'
    )
    assert write_line(("<stdin>", 1, "<module>", None)) == 'File "<stdin>", line 1, in <module>'
