"""A graph that one process has rewritten is linked by another: numbers, updates, order and errors."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import ArrayLinker, array_mode
from synk.compile.rewriting.rewritten import dumps, linked, loads, rewritten

MODE = array_mode()
X = np.random.default_rng(0).normal(size=(5, 3))


def travelled(inputs, outputs, updates=()):
    """Return a function of a rewritten graph that has been bytes, and the values that it updates."""
    shared = [variable for variable, _ in updates]
    graph = loads(dumps(rewritten(inputs, outputs, updates, MODE), shared.index), shared.__getitem__)
    return linked(graph, MODE)


def test_it_has_the_numbers_of_numpy():
    x = pt.matrix("x")
    steps = pytensor.scan(
        lambda row, total: total + row**2, sequences=x, outputs_info=x[0] * 0, return_updates=False
    )
    function = travelled([x], [pt.tanh(x @ x.T).sum(axis=0), steps[-1], x[::-1].copy(), pt.sort(x, axis=0)])
    got = function.run([X])
    wanted = np.tanh(X @ X.T).sum(axis=0), (X**2).sum(axis=0), X[::-1], np.sort(X, axis=0)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    assert (function.n_outputs, function.updates) == (4, {})


def test_updates_go_to_the_cells_of_their_variables():
    x, v, w = pt.vector("x"), pytensor.shared(np.ones(3), name="v"), pytensor.shared(2.0, name="w")
    function = travelled([x], [v.sum() * w], [(v, v * x + w), (w, w + x.sum())])
    results = function.run([X[0]])
    np.testing.assert_allclose(results[0], 6)
    found = {id(function.cells[at]): results[k] for k, at in function.updates.items()}
    np.testing.assert_allclose(found[id(v.container.storage)], X[0] + 2)
    np.testing.assert_allclose(found[id(w.container.storage)], 2 + X[0].sum())
    assert function.n_outputs == 1


def test_what_is_overwritten_is_read_before():
    x, v = pt.vector("x"), pytensor.shared(np.ones(400), name="v")
    changed = pt.set_subtensor(v[pt.cast(x, "int64")], x)
    # By the order of the outputs alone, what overwrites ``v`` would come before what reads it; in Python: a
    # region would read it with ``x``.
    mode = array_mode(ArrayLinker(native=False))
    graph = rewritten([x], [changed.sum(), pt.exp(v)], [(v, changed)], mode)
    assert any(node.op.destroy_map for node in graph.toposort())
    again = loads(dumps(graph, lambda variable: 0), lambda identity: v)
    total, read, after = linked(again, mode).run([np.array([3.0, 4.0])])
    assert total == 398 + 7
    np.testing.assert_allclose(read, np.full(400, np.e))
    np.testing.assert_array_equal(np.nonzero(after != 1)[0], [3, 4])


def test_an_error_names_the_line_of_the_script():
    x, y = pt.vectors("x", "y")
    total = x + y  # the line that is named
    with pytest.raises(ValueError, match="total = x . y  # the line that is named"):
        travelled([x, y], [total]).run([np.ones(2), np.ones(3)])
