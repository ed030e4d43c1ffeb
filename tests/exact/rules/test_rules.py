"""Graphs that need a condition of a rule: without it, ranks have another value than one process."""

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import disconnected_grad, zero_grad

from support.exact.comparison import close, plain_function
from support.exact.simulated import Simulated
from synk import ops
from synk.compile.compat import optional_class
from synk.exact.define import define

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")

RANKS = (1, 2, 3, 5)
ROWS = (12,)  # of which selections take equally many, though not on each rank

# PyTensor's own Ops, which are the reference, warn of a BLAS that they do not find.
pytestmark = pytest.mark.filterwarnings("ignore")


class Case(NamedTuple):
    """Results, for how many rows, and how many collectives there are where that tells, of these gathers."""

    results: list
    rows: tuple = ROWS
    met: tuple | None = None


y, k = pt.vector("y"), pt.lvector("k")
x, tokens = pt.matrix("x", shape=(None, 4)), pt.tensor3("tokens", shape=(None, 2, 4))
DRAWN = {
    y: lambda rng, n: rng.normal(size=n),
    k: lambda rng, n: np.arange(n),
    x: lambda rng, n: rng.normal(size=(n, 4)),
    tokens: lambda rng, n: rng.normal(size=(n, 2, 4)),
}
table = pytensor.shared(np.arange(144.0).reshape(12, 12), name="table")
gamma = pytensor.shared(np.linspace(1, 2, 12), name="gamma")
PICKED = np.array([True, False, True])


def scan(step):
    return pytensor.scan(step, outputs_info=[gamma[0]], n_steps=3, return_updates=False)


n, early, late, last = x.shape[0], k < 6, k >= 6, k > 10

CASES = {
    "the least integer goes round": Case([k[last].max() - 5, k[k < 1].min() + 5]),
    "selections beside each other": Case([y[early] + y[late], y[early] * y[late]]),
    "selections joined": Case([pt.stack([y[early], y[late]], axis=1)]),
    "selections of matrices": Case([tokens[early] @ tokens[late].transpose(0, 2, 1)]),
    "selections of indices": Case([table[k[early], k[late]]]),
    "a reshape across rows": Case([x.reshape((-1, 3)), x.reshape((-1, 8))], rows=(6, 12)),
    "row numbers in other rows": Case(
        [tokens.reshape((-1, 4))[pt.arange(tokens.shape[0])], y[late][pt.nonzero(k < 3)[0]]]
    ),
    "positions along other axes": Case([*pt.nonzero(x.T > 0), pt.nonzero(y[late] > 0)[0]]),
    "a layer along the rows": Case([ops.layer_norm(x.T, gamma, gamma)]),
    "a layer of a selection": Case([ops.layer_norm(x[last], gamma[:4], gamma[:4])], met=(0, 0)),
    "a mask that is constant": Case([x[PICKED], x.T[:, PICKED]], rows=(3,)),
    "the largest of a selection": Case([pt.argmax(y[late])], met=(1, 1)),
    "the largest of tokens": Case([pt.argmax(tokens.reshape((-1, 4)), axis=0)], met=(2, 0)),
    "a value whose gradient is stopped": Case(
        [
            disconnected_grad(x) * 2,
            zero_grad(y.sum()),
            pytensor.grad(pt.exp(x - disconnected_grad(x.max(axis=1, keepdims=True))).sum(), x),
        ],
        met=(0, 0),
    ),
    "the square of the number of rows": Case([n * k.shape[0] + x.sum(), pt.sqr(n) + x.sum()]),
    "a number of rows that is said": Case([pt.specify_shape(x, (12, 4)), pt.specify_shape(x, (n, 4)) * 2]),
    "rows repeated along rows": Case(
        [pt.alloc(y, y.shape[0], 12), pt.alloc(y[:, None], 12, y.shape[0]), pt.alloc(x.T, 4, n)]
    ),
    "a sum repeated": Case(
        [pt.alloc(y.sum(), 3), pt.alloc(x.sum(axis=0), 2, 4), pt.alloc(y.max(), 2)], met=(0, 0)
    ),
    "what rows add to rows that all ranks have": Case(
        [
            pt.inc_subtensor(table[:, :4][pt.arange(n), k % 4], y),
            pt.set_subtensor(pt.zeros((12, 4))[pt.arange(n), k % 4], y).sum(axis=0),
        ],
        rows=(12,),
        met=(0, 0),
    ),
    "a branch of numbers of rows": Case(
        [
            ifelse(x.sum() > 0, n, tokens.shape[0]) + k.sum(),
            ifelse(x.sum() > 0, n, 2 * n) + k.sum(),
            pt.zeros(ifelse(x.sum() > 0, n, k.shape[0])),
            *ifelse(x.sum() > 0, [n, 2 * y], [k.shape[0], y]),
        ],
        met=(2, 0),
    ),
    "a selection in a loop": Case([scan(lambda s: s + pt.tanh(s * y[late].mean()))], met=(6, 0)),
    "a number of tokens in a loop": Case([scan(lambda s: s / tokens.reshape((-1, 4)).shape[0])], met=(0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_have_the_value_of_one_process(name):
    case = CASES[name]
    inputs = [one for one in DRAWN if one in pytensor.graph.traversal.ancestors(case.results)]
    definition = define("f", inputs, case.results)
    alone, ranks = plain_function(definition), Simulated(definition)
    for n_rows in case.rows:
        rng = np.random.default_rng(n_rows)
        values = [DRAWN[variable](rng, n_rows) for variable in inputs]
        expected = alone(*values)
        for n_ranks in RANKS:
            for at, (one, other) in enumerate(zip(ranks(values, n_ranks), expected, strict=True)):
                assert close(one, other), f"result {at} on {n_ranks} ranks: {one} is not {other}"
            assert case.met in (None, (ranks.together.count, ranks.together.gathered))
