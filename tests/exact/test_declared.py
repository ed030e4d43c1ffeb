"""Operations that are known not to give one process's number are warned of, and no others are.

Each graph is run on simulated ranks with the operation, and by one process: what is said must be so.
"""

import contextlib

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.exact.simulated import Graph, Simulated
from synk.exact.collectives.collectives import all_reduce
from synk.exact.collectives.marks import addend
from synk.exact.declared import misdeclared, sums_of_equals
from synk.exact.define import define
from synk.exact.for_ranks import definition_for_ranks, warn_of_results

N_ROWS, N_RANKS = 11, 3

x, y, v = (
    kind(name, dtype="float64") for kind, name in ((pt.matrix, "x"), (pt.vector, "y"), (pt.vector, "v"))
)
labels = pt.lvector("labels")
w = pytensor.shared(np.linspace(-1, 1, 3), name="w")
rows = synk.n_rows

error = x @ w - y
loss = (error**2).mean()
penalty = (w**2).sum()
large = x + 9
chosen = pt.special.log_softmax(x, axis=1)[pt.arange(x.shape[0]), labels]

RIGHT = {
    "sum": [
        x.sum(),
        x.sum(0),
        loss * rows,
        rows,
        x.shape[0],
        x.T @ x,
        chosen.sum(),
        pytensor.grad(loss, w) * rows,
    ],
    "avg": [
        x.mean(),
        x.mean(axis=(0, 1)),
        loss,
        loss + 0.1 * penalty,
        0.5 * loss + 1,
        penalty,
        chosen.mean(),
    ],
    "max": [x.max(), pt.gt(x, 0).any(), penalty, pt.exp(x.max())],
    "min": [x.min(0), x.min() * 3, penalty],
    "prod": [x.prod(0), x.prod() * (x**2).prod(), x.prod() ** 2, 1 * x.prod(), pt.gt(x, -1).all()],
}
RIGHT["avg"] += [
    (error**2).sum() / rows,
    (error**2).sum() / x.shape[0],
    pytensor.grad(loss, w),
    pt.softplus(error).mean(),
    x[:, 0].mean(),
    pt.stack([loss, error.mean()]),
    pt.eq(x.argmax(1), labels).mean(),
    (x.T @ x) / rows,
    x.flatten().mean(),
    pt.ones(pt.sqrt((x**2).sum(0)).shape),
]
WRONG = {
    "avg": [
        x.sum(),
        pt.sqrt(loss),
        x.std(),
        (v * error**2).sum() / v.sum(),
        x.max(),
        x[y > 0].mean(),
        pt.log(x.sum() ** 2),
    ],
    "sum": [
        x.mean(),
        x.flatten().mean(),
        loss + penalty,
        (error**2).sum() + penalty,
        penalty,
        (x - x.mean(0)).T @ (x - x.mean(0)),
    ],
    "max": [x.sum(), x.min(), pt.sqrt((x**2).sum())],
    "min": [x.max(), loss],
    "prod": [x.sum(), x.max(), (w[0] - 1) * large.prod(), large.prod(0) / (w + 3), 2 * large.prod()],
}
WRONG["avg"] += [(error**2).sum() + penalty, pytensor.grad(pt.sqrt(loss), w), x.shape[0].astype("float64")]
# Wrong, or right by chance, or meant: a graph does not tell.
SILENT = [
    (x.sum(), None),
    (x.mean(), "gather"),
    (error, "gather"),
    (rows, "max"),
    (pt.sort(x, axis=0)[0], "avg"),
    (pt.sort(x, axis=0).mean(), "avg"),
    ((x + x.mean(0)).mean(), "avg"),
    (x.max() * 3, "max"),
]


def defined(outputs, updates=None):
    return define("f", [x, y, v, labels], outputs, updates=updates, on_unused_input="ignore")


def values():
    random = np.random.default_rng(4)
    floats = [random.normal(size=(N_ROWS, 3)), random.normal(size=N_ROWS), random.random(N_ROWS)]
    return [*floats, random.integers(0, 3, N_ROWS)]


def of_one_process(definition):
    given = dict(zip(definition.all_inputs, values(), strict=True))
    return Graph(definition.outputs)({**given, rows: np.asarray(N_ROWS)})


def listed(table):
    return [(result, mode) for mode, results in table.items() for result in results]


def named(entry):
    return str(entry)[:60]


@pytest.mark.parametrize(("result", "mode"), listed(RIGHT), ids=named)
def test_an_operation_that_gives_the_number_of_one_process_is_not_warned_of(result, mode):
    definition = defined([(result, mode)])
    assert misdeclared(definition) == []
    (found,), (expected,) = Simulated(definition)(values(), N_RANKS), of_one_process(definition)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("result", "mode"), listed(WRONG), ids=named)
def test_an_operation_that_gives_another_number_is_warned_of_with_one_that_does_not(result, mode):
    definition = defined([(result, mode)])
    (finding,) = misdeclared(definition)
    assert "output 0 (" in finding.what
    assert repr(mode) in finding.what
    (found,), (expected,) = Simulated(definition)(values(), N_RANKS), of_one_process(definition)
    assert not np.allclose(found, expected, rtol=1e-6)
    for remedy in (result, *([] if finding.remedy is None else [(result, finding.remedy)])):
        repaired = Simulated(defined([remedy]))(values(), N_RANKS)
        np.testing.assert_allclose(repaired[0], expected, rtol=1e-9)


@pytest.mark.parametrize(("result", "mode"), SILENT, ids=named)
def test_what_may_be_meant_is_not_warned_of(result, mode):
    assert misdeclared(defined([(result, mode)])) == []


def test_values_for_each_row_are_to_be_gathered():
    (finding,) = misdeclared(defined([(error, "c_sum")]))
    assert finding.remedy == "gather"
    assert "'c_sum'" in finding.what


def test_where_nothing_is_scattered_ranks_may_have_values_of_their_own():
    assert misdeclared(define("f", [], [(penalty, "sum")])) == []


def test_what_ranks_add_to_a_value_is_summed():
    definition = defined([(addend(pt.sqrt(loss)), "sum"), (addend(loss) * 2 + addend(penalty), "sum")])
    assert misdeclared(definition) == []
    np.testing.assert_allclose(
        Simulated(definition)(values(), N_RANKS), of_one_process(definition), rtol=1e-12
    )
    (finding,) = misdeclared(defined([(addend(loss), "avg")]))
    assert finding.remedy == "sum"


def test_draws_of_each_rank_are_not_judged():
    rng = pt.random.shared_rng(seed=1)
    _, draw = rng.normal(size=())
    assert misdeclared(defined([(draw, "sum"), (draw**2, "prod")])) == []


def test_a_sum_over_ranks_of_what_all_have_alike_is_warned_of():
    same = pt.scalar("same", dtype="float64")
    definition = define("f", [x], [all_reduce(same) + x.sum()], bcast_inputs=[same])
    with pytest.warns(
        synk.SynkWarning, match="'f' adds up over ranks what all of them have alike: all_reduce.'same'"
    ):
        warn_of_results(definition)
    of_parts = [
        all_reduce(x.sum()),
        all_reduce(same, "avg"),
        all_reduce(w),
    ]  # ranks may have other values of w
    assert sums_of_equals(define("f", [x], of_parts, bcast_inputs=[same])) == []


# --- with ranks ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def run(n_ranks, **options):
    synk.fork(n_ranks, **options)
    try:
        yield
    finally:
        synk.close()


def test_a_function_warns_once_at_the_line_that_builds_it():
    with run(2):
        with pytest.warns(synk.SynkWarning, match="'f' does not give") as said:
            f = synk.function([x], [(x.sum(), "avg"), (x.mean(), "sum")], name="f")
        (warning,) = said
        assert warning.filename == __file__
        assert np.allclose(f(np.ones((4, 3))), [6, 2])  # the operations hold all the same
        assert f.output_modes == ["avg", "sum"]


def test_a_part_of_an_update_that_counts_for_each_slice_is_told():
    total, other = (pytensor.shared(3.0, name=name) for name in ("total", "other"))
    sums = [total + x.sum(), total - addend(x.mean()), total, other + x.sum(), 1 + x.sum()]
    products = [total * x.prod(), x.prod() / other, 2 * x.prod()]
    for mode, updates in (("sum", sums), ("prod", products)):
        for new in updates:
            with pytest.warns(
                synk.SynkWarning, match=f"update of 'total', declared '{mode}': .* for each slice"
            ):
                definition_for_ranks(defined(None, [(total, new, mode)]))
    for new in (x.sum(), x.mean(), addend(x.mean()), total * x.sum()):  # warnings are errors
        definition_for_ranks(defined(None, [(total, new, "sum")]))
    definition_for_ranks(defined(None, [(total, x.prod() * x.prod(), "prod")]))
    definition_for_ranks(defined(None, [(total, total + x.mean(), "avg")]))
    definition_for_ranks(defined(None, [(total, total + x.sum())]))
