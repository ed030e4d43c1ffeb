"""Draws that are for all rows: what one process draws, on all ranks, whatever is made of them."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import synk
from synk.exact.define import define
from synk.exact.parts import ranks_meet
from synk.exact.results import exact_definition

X = np.arange(1.0, 15).reshape(7, 2)

# As they are written, by their own Python: PyTensor's default compiles each case for seconds.
PLAIN = Mode(linker="py", optimizer=None)


def walk(x, w, rng):
    following, ends = pytensor.scan(
        lambda state, here: pt.random.normal(state, 1, rng=here, return_next_rng=True)[::-1],
        outputs_info=[pt.constant(np.float64(0)), rng],
        n_steps=4,
        return_updates=False,
    )[::-1]
    return following, ends[-1] * x, w + ends[-1]


def of_drawn_length(x, w, rng):
    following, n = rng.integers(1, 5)
    total = pytensor.scan(
        lambda state: pt.tanh(state * x.mean()),
        outputs_info=pt.constant(np.float64(1)),
        n_steps=n,
        return_updates=False,
    )[-1]
    return following, total, w + total


def drawn(make):
    """Return a case of ``make(x, w, draw of a number between 0 and 7, rng)``."""

    def case(x, w, rng):
        following, draw = rng.integers(0, 7)
        return following, *make(x, w, draw)

    return case


def permuted(x, w, rng):
    following, order = rng.permutation(pt.arange(x.shape[0]))
    return following, x[order] - x, w + (x * x[order]).sum()


CASES = {
    "the draw": drawn(lambda x, w, n: (n + 0 * x.shape[0], w + n)),
    "a row": drawn(lambda x, w, n: (x[n], w + x[n].sum())),
    "rows up to it": drawn(lambda x, w, n: (x[:n].sum(axis=0), w * n)),
    "a factor of rows": drawn(lambda x, w, n: (x * n, w - n * x.mean())),
    "a choice": drawn(
        lambda x, w, n: (pt.switch(n > 3, x.sum(axis=0), 0), pt.switch(n > 3, w - x.mean(), w))
    ),
    "an index of a sum": drawn(lambda x, w, n: (x.sum(axis=0)[n % 2], w + x.mean(axis=0)[n % 2])),
    "an order of rows": permuted,
    "a loop that draws": walk,
    "a loop of drawn length": of_drawn_length,
}


def built(make, build):
    x, w, rng = pt.matrix("x"), pytensor.shared(np.float64(1), name="w"), pt.random.shared_rng(seed=3)
    following, output, updated = build(x, w, rng)
    return make([x], [output], updates=[(rng, following), (w, updated)]), w


@pytest.mark.parametrize("name", CASES)
def test_what_is_drawn_for_all_rows_is_what_one_process_draws(module_ranks, name):
    function, w = built(synk.function, CASES[name])
    with pytensor.config.change_flags(mode=PLAIN):  # of the steps of loops, too
        one, expected = built(pytensor.function, CASES[name])
    for n in (7, 7, 4, 7):
        rows = X[:n] if "row" not in name else X
        np.testing.assert_allclose(function(rows)[0], one(rows)[0], rtol=1e-9)
        for rank in range(module_ranks):
            np.testing.assert_allclose(synk.get_value(rank, w), expected.get_value(), rtol=1e-9)


def test_ranks_meet_for_a_draw_only_where_something_is_made_of_it():
    x, rng = pt.matrix("x"), pt.random.shared_rng(seed=3)
    following, draw = rng.normal()
    exact = exact_definition(define("f", [x], [draw, x.sum()], updates=[(rng, following)]))
    assert not ranks_meet(exact.outputs)
    exact = exact_definition(define("f", [x], [draw + 1, x.sum()], updates=[(rng, following)]))
    assert ranks_meet(exact.outputs)
