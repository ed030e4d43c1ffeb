"""No rows at all, or none on some ranks: every rule of `synk.exact.rules` gives one process's values."""

from functools import cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.tensor.special import log_softmax, softmax

import synk
from synk.compile import ArrayLinker

N_RANKS = 3

# PyTensor's own Ops, which are the reference, warn of a BLAS that they do not find, and of divisions by 0.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("module_ranks")]

PLAIN = Mode(linker="py", optimizer=None)
BY_LINKER = Mode(ArrayLinker(), RewriteDatabaseQuery(include=["minimum_compile"]))

x = pt.dmatrix("x")
NOTHING = np.zeros(0, "int64")
TABLE = np.arange(12.0).reshape(4, 3)
numbers = x[:, 0].astype("int64")

RESULTS = {
    "softmax": [
        *(softmax(x, axis=axis) for axis in (0, 1, None)),
        *(log_softmax(x, axis=axis) for axis in (0, 1, None)),
        softmax(x[:, 0], axis=0),
        log_softmax(x[:, 0] * 2),
        softmax(x.T, axis=1),
        softmax(x[x[:, 0] > 1], axis=0),
        (softmax(x, axis=0) ** 2).sum(),
        *(pytensor.grad((kind(x, axis=0) ** 2).sum(), x) for kind in (softmax, log_softmax)),
    ],
    "picked": [
        x[NOTHING],
        x[NOTHING.reshape(0, 2)],
        pt.take(x, NOTHING, axis=0),
        x[pytensor.shared(NOTHING)],
        x[0:0],
        x[1:],
        x[:-1],
        x[::-1],
        x[::2],
        x[:, [0, 2]],
        x[x[:, 0] > 1],
        x[pt.nonzero(x[:, 0] > 1)[0]],
        x[pt.argsort(x[:, 0])],
        x[pt.arange(x.shape[0]), numbers % 3],
        pt.as_tensor(TABLE)[numbers],
        pytensor.grad((x[NOTHING] ** 2).sum(), x),
        pytensor.grad((x[1:] ** 2).sum(), x),
    ],
    "written": [
        pt.inc_subtensor(pt.as_tensor(TABLE)[numbers], x),
        pt.inc_subtensor(x[0:0], 1.0),
        pt.set_subtensor(x[1:], 1.0),
        pt.set_subtensor(x[:, 0], 1.0),
    ],
    "reduced": [
        *(x.sum(axis=axis) for axis in (0, 1, None)),
        x.prod(axis=0),
        x.max(axis=1),
        x.argmax(axis=1),
        (x > 1).any(axis=0),
        (x > 1).all(axis=0),
        x.mean(axis=0),
        x.var(axis=0),
        pt.logsumexp(x, axis=0),
    ],
    "sorted": [
        *(pt.sort(x, axis=axis) for axis in (0, 1, None)),
        pt.argsort(x, axis=0),
        pt.searchsorted(pt.arange(3.0), x[:, 0]),
        pytensor.grad((pt.sort(x, axis=0) ** 2).sum(), x),
    ],
    "running": [pt.cumsum(x, axis=0), pt.cumprod(x, axis=0), pt.cumsum(x), pt.diff(x, axis=0)],
    "moved": [
        x.T,
        x.flatten(),
        x.reshape((x.shape[0], 3, 1)),
        pt.repeat(x, 2, axis=0),
        pt.tile(x, (2, 1)),
        pt.roll(x, 1, axis=0),
        pt.concatenate([x, x], axis=0),
        pt.concatenate([x, TABLE], axis=0),
        pt.stack([x, x]),
    ],
    "products": [x.T @ x, x @ TABLE.T, x @ x.T, pt.matmul(x[:, :, None], x[:, None, :])],
    "lengths": [x.shape[0], pt.arange(x.shape[0]), pt.zeros((x.shape[0], 2)), pt.eye(x.shape[0])],
    "meeting": [x - x.mean(axis=0), x / x.sum(axis=0), pt.switch(x > x.mean(), x, 0)],
}


def rows(count):
    return np.random.default_rng(count).uniform(0.2, 3, size=(count, 3))


def one_process(results):
    """As PyTensor computes them; as the linker does softmax of no rows, which PyTensor 3.3 refuses."""
    plain = pytensor.function([x], results, mode=PLAIN)

    @cache
    def by_linker():
        return pytensor.function([x], results, mode=BY_LINKER)

    def run(values):
        try:
            return plain(values)
        except ValueError:  # also where rows are given, and none is selected
            return by_linker()(values)

    return run


def check(got, wanted):
    for number, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), number
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, err_msg=str(number))


@pytest.mark.parametrize("family", RESULTS)
def test_ranks_without_rows_give_the_values_of_one_process(family):
    f, plain = synk.function([x], RESULTS[family]), one_process(RESULTS[family])
    for count in (0, 1, 2, 5):
        check(f(rows(count)), plain(rows(count)))


@pytest.mark.slow
def test_empty_selections_of_ranks_give_the_values_of_one_process():
    held = pytensor.shared(np.zeros((0, 3)), name="held")
    synk.scatter(held, rows(9))
    results = [*RESULTS["softmax"], *RESULTS["picked"][:5], *RESULTS["sorted"], *RESULTS["meeting"]]
    f = synk.function([], clone_replace(results, {x: held}), sliceable_shareds=[held])
    plain, none = one_process(results), slice(0, 0)
    for selections in ([none, none, none], [none, slice(0, 2), []], [[2, 0], none, none]):
        chosen = [part[one] for part, one in zip(np.split(rows(9), 3), selections, strict=True)]
        check(f(batch_s=selections), plain(np.concatenate(chosen)))


@pytest.mark.parametrize("largest", [x.max(axis=0), x.min(), x.argmax(axis=0), x - x.max(axis=0)])
def test_there_is_no_largest_of_no_rows(largest):
    f = synk.function([x], largest)
    np.testing.assert_allclose(f(rows(1)), one_process(largest)(rows(1)))
    with pytest.raises(ValueError, match="zero-size|empty"):
        f(rows(0))
