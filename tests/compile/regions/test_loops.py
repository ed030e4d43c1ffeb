"""Scan as a loop in C, against the loop in Python: the same rows, however many steps there are."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scan.basic import scan, until
from pytensor.scan.op import Scan

from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.regions.region import Region

NATIVE, PYTHON = array_mode(), array_mode(ArrayLinker(native=False))
AS_WRITTEN = Mode(ArrayLinker(native=False), RewriteDatabaseQuery(include=["minimum_compile"]))

x, a = pt.dmatrix("x"), pt.dmatrix("a")
w, y, rows = pt.dvector("w"), pt.dvector("y"), pt.dmatrix("rows")
t, u = pt.dtensor3("t"), pt.dmatrix("u")
s, n = pt.dscalar("s"), pt.lscalar("n")
short = pt.tensor("start", shape=(3, 2), dtype="float64")


def steps(step, **keywords):
    return scan(step, return_updates=False, **keywords)


def stopping(row, total):
    total = total + row.sum()
    return [total, row * 2], until(total > s)


def nested_until(row, total):
    inner = steps(lambda b, before: (b + before, until(before > 1)), sequences=row, outputs_info=s)
    return total + inner[-1] + inner.shape[0]


def triangle(k, total):
    inner = steps(lambda b, before: b * before + k, sequences=y[:k], outputs_info=s)
    return total + pt.switch(k > 0, inner.sum(), 0.0)


ends = steps(stopping, sequences=x, outputs_info=[pt.zeros(()), None])
further = steps(
    lambda row, before, last: (row + last * before, until((row + last * before).sum() > s)),
    sequences=x,
    outputs_info={"initial": short, "taps": [-3, -1]},
    n_steps=n,
)
state = steps(lambda h: (pt.tanh(h @ a + s), until(h.sum() > s)), outputs_info=w, n_steps=n)
layer = steps(lambda row, h, a: pt.tanh(row @ u + h @ a), sequences=t, outputs_info=rows, non_sequences=a)
LOOPS = {
    "until": [*ends, ends[0][-1], ends[1].sum(axis=0), ends[1].shape[0]],
    "until, further back": [further * 2, further[-1], further[-2:]],
    "until, a state only": state[-1] * 2,
    "until in a loop": steps(nested_until, sequences=x, outputs_info=pt.zeros(())),
    "no steps in a loop": steps(triangle, sequences=pt.arange(n), outputs_info=pt.zeros(())),
    "rows whose lengths a step tells": steps(lambda row: [row[:n] + 1, pt.outer(row, row)[n:]], sequences=x),
    "such rows in a loop": steps(
        lambda row: steps(lambda b: b * row[:n], sequences=row).sum(axis=0), sequences=x
    ),
    "rows that are several results": steps(
        lambda row, h: [pt.tanh(h + row), pt.tanh(h + row), row, (h + row)[::-1], 2 * (h + row)],
        sequences=x,
        outputs_info=[w, None, None, None, None],
    ),
    "such rows until": steps(lambda row: (row[:n] + 1, until(row.sum() > s)), sequences=x),
    "products": [layer, *pytensor.grad((layer**2).sum(), [t, u, a, rows])],
    "transposed products": steps(lambda m: (m.T @ rows)[:, ::2] @ (a @ a.T)[::2], sequences=t),
    "scaled products": steps(lambda m, z: 0.5 * z - 2 * (m @ a), sequences=t, outputs_info=rows),
    "powers": steps(lambda row, h: abs(row) ** h + pt.sigmoid(h), sequences=x, outputs_info=w),
    "softmax": pytensor.grad(
        steps(lambda row, h: pt.special.softmax(row + h) * row, sequences=x, outputs_info=w).sum(), [x, w]
    ),
    "logarithms of sums": pytensor.grad(
        steps(lambda row, h: pt.logsumexp(h[:, None] + a, axis=0) + row, sequences=x, outputs_info=w).sum(),
        [x, w, a],
    ),
    "parts": steps(
        lambda row, h: pt.concatenate(pt.split(row * h, [1, 1])[::-1]), sequences=x, outputs_info=w
    ),
}


def gates(row, h, axis=0):
    one, other = pt.split(row * h, [1, 1], axis=axis)
    return pt.concatenate([pt.tanh(one), pt.exp(-other), one], axis=axis)


def twice(row, h):
    one, other = (pt.tanh(part) for part in pt.split(row * h, [1, 1]))
    return pt.concatenate([one, one]) + pt.concatenate([pt.sqr(one), 2 - other])


LOOPS |= {
    "pieces of a join": steps(lambda row, h: gates(row, h)[1:] + h, sequences=x, outputs_info=w),
    "pieces along the second axis": steps(lambda m: gates(m[:, :2], m[:, :2] + s, axis=1), sequences=t),
    "pieces of several joins": steps(twice, sequences=x, outputs_info=w),
}


def values(length=7, k=2):
    rng = np.random.default_rng(length)
    return {
        x: rng.normal(size=(length, 2)),
        a: rng.normal(size=(k, k)) / k,
        w: rng.normal(size=2),
        y: rng.normal(size=length),
        rows: rng.normal(size=(k + 1, k)),
        t: rng.normal(size=(length, k + 1, k)),
        u: rng.normal(size=(k, k)) / k,
        s: np.float64(0.7),
        n: np.int64(min(length, 1 + length % 2 * 4)),
        short: rng.normal(size=(3, 2)),
    }


def compiled(outputs, mode):
    return pytensor.function([*values()], outputs, mode=mode, on_unused_input="ignore")


def scans_of(function):
    return [node for node in function.maker.fgraph.apply_nodes if isinstance(node.op, Scan)]


# What they are made of, others have, too.
LATER = (
    *("until in a loop", "until, a state only", "such rows until", "such rows in a loop"),
    *("products", "scaled products", "softmax", "logarithms of sums", "parts"),
    *("pieces along the second axis", "pieces of several joins"),
)


@pytest.mark.parametrize("name", [slow(name) if name in LATER else name for name in LOOPS])
def test_a_loop_has_the_rows_of_pythons(gave_up, name):
    # Which rows are left of a loop that may end earlier is for rewrites to say.
    reference = PYTHON if "until" in name else AS_WRITTEN
    native, python = (compiled(LOOPS[name], mode) for mode in (NATIVE, reference))
    assert any(isinstance(node.op, Region) for node in native.maker.fgraph.apply_nodes)
    assert not scans_of(native)
    many = "product" in name
    for length, k in ((7, 2), (40, 33 if many else 2), (1, 2), (0, 2)):
        given = [*values(length, k).values()]
        try:
            expected = python(*given)
        except (IndexError, ValueError) as error:
            assert not length
            with pytest.raises(type(error)):
                native(*given)
            gave_up.clear()
            continue
        found = native(*given)
        assert not gave_up
        for one, other in zip(*(r if isinstance(r, list) else [r] for r in (found, expected)), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, 1e-12, 1e-12)


@pytest.mark.parametrize("number", [-1, 8])
def test_too_few_or_too_many_steps_are_told(number):
    loop = steps(lambda row, h: row + h, sequences=y, outputs_info=s, n_steps=n)
    function = compiled(loop, NATIVE)
    assert not scans_of(function)
    given = values() | {n: number}
    with pytest.raises((ValueError, IndexError), match="fewer than its 8 steps|of -1 steps|negative"):
        function(*given.values())
