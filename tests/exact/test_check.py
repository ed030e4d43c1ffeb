"""The first call of a function can be compared with one process."""

import dataclasses
import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.linalg
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

import synk
from synk.compile import array_mode
from synk.compile.linker import ArrayLinker
from synk.exact.check import FirstCall, difference
from synk.exact.define import define

VALUES = np.random.default_rng(5).normal(size=(7, 2))
x = pt.matrix("x", dtype="float64")
IN_PYTHON = Mode(VMLinker(use_cloop=False, c_thunks=False), "fast_run")


# --- without ranks ---------------------------------------------------------------------------------------


def test_rounding_is_no_difference():
    for dtype, off in (("float64", 1e-10), ("float32", 1e-5), ("float16", 5e-3)):
        value = np.linspace(1, 2, 5).astype(dtype)
        assert difference(value, (value * (1 + off)).astype(dtype)) is None
        assert difference(value, value + 30 * off) is None or dtype == "float16"
        assert difference(value, value * 1.1) is not None
    assert difference(np.asarray(1e-16), np.asarray(0.0)) is None  # a sum that cancels
    special = np.asarray([np.nan, np.inf, -np.inf])
    assert difference(special, special) is None
    assert difference(np.zeros((0, 2)), np.zeros((0, 2))) is None


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        (3, 4, "3, in one process 4"),
        (2.0, 1.0, "2, in one process 1"),
        (np.nan, 1.0, "nan, in one process 1"),
        (np.inf, 1.0, "inf, in one process 1"),
        ([1.0, 2.0, 5.0], [1.0, 2.0, 3.0], r"5, in one process 3 at \[2\]; 1 of 3 differ"),
        ([1.0, 2.0], [[1.0, 2.0]], r"shape \(2,\), in one process \(1, 2\)"),
        ([True, False], [True, True], r"0, in one process 1 at \[1\]"),
    ],
)
def test_a_difference_is_told_where_it_is_largest(found, expected, said):
    assert re.match(said, difference(np.asarray(found), np.asarray(expected)) or "nothing")


def test_one_process_computes_the_graph_as_it_was_written():
    w = pytensor.shared(np.asarray(3.0), name="w")
    definition = define("f", [x], [x.sum() * w + synk.n_rows], updates=[(w, w + x.shape[0])])
    total, new = FirstCall(definition).expected([VALUES])
    assert np.isclose(total, VALUES.sum() * 3 + 7)
    assert new == 10
    assert w.get_value() == 3


def test_what_ranks_have_of_their_own_cannot_be_compared():
    rng = pt.random.shared_rng(seed=1)
    drawn = define("f", [x], [x.sum() + rng.normal(size=())[1]])
    with pytest.raises(ValueError, match="check='first' of 'f': each rank draws random numbers of its own"):
        FirstCall(drawn)
    table = pytensor.shared(VALUES, name="table")
    with pytest.raises(ValueError, match="the ranks have rows of their own of 'table'"):
        FirstCall(define("f", [], [table.sum()], sliceable_shareds=[table]))


JOINS = {
    "join": (lambda s, n, lib: lib.concatenate([s, n])),
    "roll": (lambda s, n, lib: lib.roll(s, 1, axis=0)),
    "stack": (lambda s, n, lib: lib.stack([s[-1], n[0]])),
    "vector": (lambda s, n, lib: lib.stack([s[-1, 1], n[0, 0]])),
    "diagonal": (lambda s, n, lib: lib.diag(s[-1], -1)),
}


@pytest.mark.parametrize("dtype", ["bool", "int8"])
@pytest.mark.parametrize("name", JOINS)
def test_running_sums_that_are_joined_with_narrow_integers_are_numpys(name, dtype):
    n = pt.matrix("n", dtype=dtype)
    value = np.full((4, 3), 1 if dtype == "bool" else 100, dtype)
    definition = define("f", [], JOINS[name](pt.cumsum(n, axis=0), n, pt), bcast_inputs=[n])
    expected = JOINS[name](np.cumsum(value, axis=0), value, np)
    (alone,) = FirstCall(definition).expected([value])
    compiled = pytensor.function([n], list(definition.outputs), mode=array_mode(ArrayLinker(native=False)))
    for found in (alone, *compiled(value)):
        np.testing.assert_array_equal(found, expected, strict=True)


def added_once(table, at):
    """Write at repeated positions, of which a rewrite of PyTensor 3.0 would add each."""
    return pt.set_subtensor(table[at], table[at] + 1)


@pytest.mark.parametrize("mode", [None, IN_PYTHON])
@pytest.mark.parametrize("depth", ["op", "loop", "op in a loop"])
def test_graphs_inside_of_ops_are_not_rewritten_either(depth, mode):
    table, at = pt.vector("table", dtype="float64"), pt.vector("at", dtype="int64")
    op = OpFromGraph([table, at], [added_once(table, at)])
    step = added_once if depth == "loop" else op
    once = op(table, at) if depth == "op" else looped(step, table, at)
    definition = define("f", [], once, bcast_inputs=[table, at], mode=mode)
    (found,) = FirstCall(definition).expected([np.zeros(3), np.array([0, 0, 2])])
    np.testing.assert_array_equal(found, [1, 0, 1])


def looped(step, table, at):
    """Return the table after one step of a loop."""
    return pytensor.scan(step, outputs_info=[table], non_sequences=[at], n_steps=1, return_updates=False)[-1]


# --- with ranks ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("module_ranks")
class TestWithRanks:
    def test_a_first_call_that_is_right_passes(self):
        total = pytensor.shared(np.zeros(2), name="total")
        f = synk.function(
            [x],
            [x.std(), (x.mean(), "avg"), (x, "gather"), (x.max(), None), x * 2],
            updates=[(total, total + x.sum(0))],
            check="first",
        )
        data = synk.data(VALUES)
        for rows in (slice(0, 5), 3, [1, 6, 1]):
            std, *_ = f(data, batch=rows)
            chosen = VALUES[:rows] if isinstance(rows, int) else VALUES[rows]
            assert np.isclose(std, chosen.std())
        assert np.allclose(
            total.get_value(), VALUES[:5].sum(0) + VALUES[:3].sum(0) + VALUES[[1, 6, 1]].sum(0)
        )

    def test_a_first_call_that_is_wrong_is_told_once(self):
        total = pytensor.shared(np.zeros(2), name="total")
        with pytest.warns(synk.SynkWarning):
            f = synk.function(
                [x], [(x.sum(), "avg"), x.sum()], updates=[(total, x.sum(0))], name="f", check="first"
            )
        with pytest.raises(synk.SynkError, match=r"first call of 'f' on \d ranks differs") as error:
            f(VALUES)
        assert "output 0 (" in str(error.value)
        assert "declared 'avg'" in str(error.value)
        assert "output 1" not in str(error.value)
        assert "total" not in str(error.value)
        f(VALUES)

    def test_a_wrong_update_is_told(self):
        total = pytensor.shared(np.zeros(2), name="total")
        f = synk.function([x], updates=[(total, x.sum(0))], name="f", check="first")
        # As if the analysis of the graph were wrong.
        wrong = dataclasses.replace(f._definition.updates[0], value=x.sum(0))
        f._definition = dataclasses.replace(f._definition, updates=(wrong,))
        with pytest.raises(synk.SynkError, match=r"the update of 'total': .*, in one process .* at \[\d\]"):
            f(VALUES)

    def test_a_first_call_that_fails_is_not_the_first(self):
        f = synk.function([x], x.sum(), name="f", check="first")
        with pytest.raises(IndexError):
            f(VALUES, batch=100)
        with pytest.raises(ValueError, match="'f' has check='first': call it once by itself"):
            synk.sequence(f)
        f(VALUES, num_slices=2)
        synk.sequence(f)(VALUES)

    def test_a_minibatch_is_paired_with_the_selected_rows(self):
        weights = pt.vector("weights", dtype="float64")
        f = synk.function([x, weights], (x.sum(1) * weights).sum(), check="first")
        paired = synk.data(np.arange(3.0), minibatch=True)
        assert np.isclose(
            f(synk.data(VALUES), paired, batch=[5, 2, 0]), VALUES[[5, 2, 0]].sum(1) @ np.arange(3)
        )

    def test_another_word_is_refused(self):
        with pytest.raises(ValueError, match="check='always' is unknown"):
            synk.function([x], x.sum(), check="always")

    def test_running_sums_of_truth_values_and_narrow_integers_are_counted(self):
        narrow = pt.matrix("narrow", dtype="int8")
        value = np.full((7, 2), 100, "int8")
        f = synk.function(
            [narrow],
            [pt.cumsum(narrow > 0, axis=0), pt.cumsum(narrow, axis=0), pt.cumprod(narrow, axis=1) * 1.0],
            check="first",
        )
        counts, sums, products = f(value)
        np.testing.assert_array_equal(counts, np.cumsum(value > 0, axis=0), strict=True)
        np.testing.assert_array_equal(sums, np.cumsum(value, axis=0), strict=True)
        np.testing.assert_array_equal(products, np.cumprod(value, axis=1))

    def test_graphs_inside_of_ops_are_those_of_the_mode_on_ranks_too(self):
        table, at = pt.vector("table", dtype="float64"), pt.vector("at", dtype="int64")
        op = OpFromGraph([table, at], [added_once(table, at)])
        f = synk.function([], op(table, at), bcast_inputs=[table, at], mode=IN_PYTHON, check="first")
        np.testing.assert_array_equal(f(np.zeros(3), np.array([0, 0, 2])), [1, 0, 1])

    def test_joined_running_sums_pass(self):
        narrow = pt.matrix("narrow", dtype="int8")
        sums, value = pt.cumsum(narrow, axis=0), np.full((7, 2), 100, "int8")
        f = synk.function([narrow], [pt.concatenate([sums, narrow], axis=1), pt.roll(sums, 1)], check="first")
        wide = np.cumsum(value, axis=0)
        for found, other in zip(f(value), (np.concatenate([wide, value], 1), np.roll(wide, 1)), strict=True):
            np.testing.assert_array_equal(found, other, strict=True)

    def test_running_sums_on_a_diagonal_of_blocks_pass(self):
        narrow = pt.matrix("narrow", dtype="int8")
        sums, value = pt.cumsum(narrow, axis=0), np.full((7, 2), 100, "int8")
        both = [pt.linalg.block_diag(sums, narrow), pt.linalg.block_diag(sums[:, :, None], narrow[:, None])]
        found, batch = synk.function([narrow], both, check="first")(value)
        wide = np.cumsum(value, axis=0)
        np.testing.assert_array_equal(found, scipy.linalg.block_diag(wide, value), strict=True)
        for one, column, row in zip(batch, wide, value, strict=True):
            expected = scipy.linalg.block_diag(column[:, None], row[None])
            np.testing.assert_array_equal(one, expected, strict=True)

    def test_a_dtype_that_one_process_does_not_give_is_found(self, monkeypatch):
        monkeypatch.setattr("synk.exact.define.as_performed", list)
        f = synk.function([x], pt.cumsum(x[:, 0] > -9), check="first")
        with pytest.raises(synk.SynkError, match="dtype bool, in one process int64"):
            f(VALUES)
