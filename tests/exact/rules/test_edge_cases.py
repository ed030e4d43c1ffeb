"""Numbers that go round, divisions by zero, rows of a selection: where the cheap way is not one process's."""

from typing import NamedTuple

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor.tensor.elemwise import CAReduce

from support.exact.comparison import close, plain_function
from support.exact.simulated import Simulated
from synk.exact.define import define
from synk.exact.parts import ranks_meet

RANKS = (1, 2, 3, 5)

# PyTensor's own Ops, which are the reference, warn of a BLAS that they do not find.
pytestmark = pytest.mark.filterwarnings("ignore")


class Hard(NamedTuple):
    """Results, and the values of their inputs; of scattered ones for the number of rows."""

    results: list
    scattered: dict  # of functions of the number of rows
    bcast: dict = {}  # noqa: RUF012  (never written to)
    rows: tuple = (1, 2, 3, 7, 12)


x, y, n = pt.matrix("x"), pt.vector("y"), None
k = pt.lvector("k")
a_byte, bytes_ = pt.bvector("a_byte"), pt.bmatrix("bytes")
positive = pt.vector("positive", dtype="uint8")
mask, masks = pt.vector("mask", dtype="bool"), pt.matrix("masks", dtype="bool")
tokens, labels = pt.tensor3("tokens"), pt.lvector("labels")
known = pt.matrix("known", shape=(None, 4))
three = pt.matrix("three", shape=(None, 3))
w, s = pt.vector("w"), pt.scalar("s")

RNG = np.random.default_rng(0)
n = x.shape[0]
REALS = {x: lambda n: RNG.normal(size=(n, 3))}
WHOLE = {k: lambda n: RNG.integers(0, 9, n)}
BITS = {k: lambda n: np.array([1, 2, 4, 8] * 3)[:n]}
BYTES = {bytes_: lambda n: RNG.integers(50, 120, (n, 3)).astype("int8")}
A_BYTE = {a_byte: lambda n: RNG.integers(50, 120, n).astype("int8")}
NINES = {positive: lambda n: np.full(n, 9, "uint8")}
SELECTED = {y: lambda n: RNG.normal(size=n), mask: lambda n: RNG.random(n) < 0.6}
TOKENS = {tokens: lambda n: RNG.normal(size=(n, 2, 3)), labels: lambda n: RNG.integers(0, 2, n)}

THREE = {three: lambda n: RNG.normal(size=(n, 3))}
KNOWN = {known: lambda n: RNG.normal(size=(n, 4))}


def large(number):
    return pt.constant(number, dtype="int64")


def outer(one):
    return one[:, None] * one[None, :]


def in_bytes(rows):
    return rows.sum(dtype="int8", acc_dtype="int8")


CASES = {
    # Of numbers of rows.
    "half of the rows": Hard(
        [pt.zeros(pt.cast(n * 0.5, "int64")), pt.cast(n * 0.5, "int64") + k.sum()], REALS | WHOLE
    ),
    "half in a shape": Hard([pt.ones(pt.stack([n * 0.5, 1.0]).astype("int64")[0])], REALS),
    "whether there are rows": Hard([pt.cast(k.shape[0], "bool") + k.sum()], WHOLE),
    "number of rows in a byte": Hard(
        [pt.cast(n, "int8") + k.sum(), x.shape.prod(dtype="int8") + k.sum()],
        REALS | WHOLE,
        rows=(60, 100),
    ),
    "number of rows in floats": Hard(
        [pt.cast(n, "float32") + x.sum(), pt.cast(n * 0.5, "float64") * x.sum()], REALS
    ),
    # Of bits.
    "bits of extremes": Hard([k.max() | 4, k.min() & 2, k.max() | (2 * k).max()], BITS),
    "bits of rows": Hard([CAReduce(ps.or_)(k), CAReduce(ps.and_)(k)], BITS),
    # Of integers that go round.
    "bytes beside larger": Hard(
        [
            in_bytes(a_byte) * large(3),
            in_bytes(a_byte) + large(3),
            pt.switch(pt.gt(s, 0), in_bytes(a_byte), large(500)),
        ],
        A_BYTE,
        {s: np.array(1.0)},
    ),
    "products of bytes": Hard([bytes_.T @ bytes_ + large(3000), (bytes_.T @ bytes_).sum()], BYTES),
    "bytes times a matrix": Hard([(bytes_.T @ bytes_) @ pt.constant(np.full((3, 2), 5))], BYTES),
    "bytes added to places": Hard(
        [
            pt.inc_subtensor(pt.zeros(5, "int64")[1:4], bytes_.sum(axis=0, dtype="int8", acc_dtype="int8")),
            pt.inc_subtensor(
                pt.zeros(5, "int64")[[1, 1, 2]], bytes_.sum(axis=0, dtype="int8", acc_dtype="int8")
            ),
        ],
        BYTES,
    ),
    "truths": Hard(
        [masks.T @ masks, ~(masks.T @ masks), ~mask.sum(dtype="bool")],
        {masks: lambda n: RNG.random((n, 3)) < 0.3, mask: lambda n: RNG.random(n) < 0.3},
    ),
    "below zero without a sign": Hard(
        [
            (positive.sum() - pt.constant(10, dtype="uint8")) / 2,
            (positive.sum() - pt.constant(10, dtype="uint8")).astype("float64"),
            (-positive.sum()).astype("float64"),
            (positive.sum() - pt.constant(10, dtype="uint8")) * 0.5,
        ],
        NINES,
    ),
    # Of selected rows.
    "the same for all rows": Hard(
        [
            pt.inc_subtensor(tokens[pt.arange(tokens.shape[0]), labels], w),
            pt.set_subtensor(tokens[pt.arange(tokens.shape[0]), labels], w).sum(axis=0),
            pt.inc_subtensor(tokens[pt.arange(tokens.shape[0]), labels], tokens[:, 0]),
        ],
        TOKENS,
        {w: np.arange(1.0, 4)},
        rows=(3, 6),
    ),
    "selected both ways": Hard([outer(y[mask]) + outer(y[mask]).T], SELECTED),
    # In other shapes.
    "rows of rows": Hard([three.reshape((-1, 2)), three.reshape((-1, 6))], THREE, rows=(2, 4, 6, 12)),
    "whole rows of rows": Hard(
        [x.reshape((-1, 1)), x.reshape((-1, 3)) * 2, x.reshape((-1, 1, 3)).sum()], REALS
    ),
    "rows of a stretch": Hard(
        [known.reshape((known[::2].shape[0], 8)), known.reshape((known[::2].shape[0], -1))],
        KNOWN,
        rows=(2, 4, 6, 12),
    ),
    "tokens of rows": Hard(
        [
            tokens.reshape((-1, tokens.shape[-1])),
            tokens.reshape((-1,)),
            tokens.reshape((-1, 1)),
            known.reshape((-1, 2)),
        ],
        {tokens: TOKENS[tokens]} | KNOWN,
    ),
    # Of zeros and infinities.
    "a row over zero": Hard(
        [x[0] / w, x[-1] * pt.log(w), x[[0, -1]] / w, x[0] / (w - 1)], REALS, {w: np.array([0.0, 1, 2])}
    ),
    "a row in a product": Hard(
        [
            x[0] @ pt.outer(1 / w, w),
            (2 * x[0]) / w,
            (x[0] + 1) / w,
            -x[0] / w,
            x[0] / n / w,
            x[0] / (x - x).sum(),
            x[0] * (x[-1] / w),
        ],
        REALS,
        {w: np.array([0.0, 1, 2])},
    ),
    "a largest and infinity": Hard(
        [y.max() + s, s - y.min(), s + y.max()],
        {y: lambda n: np.where(np.arange(n) == 0, 1.0, -np.inf)},
        {s: np.array(np.inf)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_hard_values_are_those_of_one_process(name):
    case = CASES[name]
    definition = define("hard", [*case.scattered], case.results, bcast_inputs=[*case.bcast])
    alone, ranks = plain_function(definition), Simulated(definition)
    for n_rows in case.rows:
        values = [*(draw(n_rows) for draw in case.scattered.values()), *case.bcast.values()]
        expected = alone(*values)
        for n_ranks in RANKS:
            for at, (one, other) in enumerate(zip(ranks(values, n_ranks), expected, strict=True)):
                assert close(one, other), (
                    f"result {at}: {one} is not {other}, {n_rows} rows on {n_ranks} ranks"
                )


def test_rows_of_unknown_length_are_taken_to_be_whole_in_another_shape():
    ranks = Simulated(define("images", [x], [x.reshape((-1, 2))]))
    assert not ranks_meet(ranks.exact.outputs)
    with pytest.raises(ValueError, match="cannot reshape array of size 9"):
        ranks([np.ones((6, 3))], 2)
