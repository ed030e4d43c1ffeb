import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from synk.compile import ArrayLinker
from synk.compile.programs.graphs.origin import user_lines
from synk.compile.rewriting.rewrites import KeepLines, array_query


def lines_by_op(rewrites):
    """Return source lines by Op: of a product that is rewritten without a trace, as is softmax in 3.3."""
    query = array_query(np)
    query = RewriteDatabaseQuery(include=query.include, exclude=query.exclude, extra_rewrites=rewrites)
    x, w = pt.dmatrix("x"), pytensor.shared(np.ones(3))
    product = pt.dot(x, w)
    weights = pt.special.softmax(x, axis=1)
    mode = pickle.loads(pickle.dumps(Mode(ArrayLinker(), query)))
    function = pytensor.function([x], [product, weights], mode=mode)
    np.testing.assert_array_equal(function(np.ones((2, 3)))[0], [3, 3])
    nodes = function.maker.fgraph.toposort()
    return {type(node.op).__name__: [line[3] for line in user_lines(node.outputs[0])] for node in nodes}


def test_replacements_keep_the_line():
    lines = lines_by_op([(KeepLines(), -1)])
    assert lines["Gemv"] == ["product = pt.dot(x, w)"]
    assert lines["Softmax"] == ["weights = pt.special.softmax(x, axis=1)"]


def test_rewrites_that_copy_traces_themselves_are_left_alone():
    x = pt.dvector("x")
    first = pt.exp(x)
    second = pt.log(first)
    second.tag.trace = [[("model.py", 1, "f", "second")]]
    graph = pytensor.graph.fg.FunctionGraph([x], [first], clone=False)
    KeepLines().rewrite(graph)
    KeepLines().rewrite(graph)  # once is enough
    graph.replace(first, second)
    assert user_lines(second) == (("model.py", 1, "f", "second"),)
    third = pt.exp(x)
    third.tag.trace = []
    graph.replace(second, third)
    assert user_lines(third) == (("model.py", 1, "f", "second"),)
