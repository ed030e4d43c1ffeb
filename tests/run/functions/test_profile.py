"""`Function.profile`, ``mode="debug"`` and whose line is blamed, on all ranks of a run."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.unary_op import UnaryOp
from support.slow import slow
from synk.compile import array_funcify, array_mode
from synk.compile.observe.debug import DebugError
from synk.compile.observe.profile import Profile
from synk.extensions import updates
from synk.extensions.train import make_train_function
from synk.run.session import current

ROWS = np.arange(24.0).reshape(8, 3)


class Double(UnaryOp):
    """Twice the input; its entry is wrong in a worker."""

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0]


@array_funcify.register(Double)
def double(op, node, xp):
    factor = 2 if current.is_open() else 3
    return lambda x: factor * x


def training():
    """Return a train step, its weights and its flat gradient."""
    x = pt.dmatrix("x")
    w = pytensor.shared(np.ones(3), name="w")
    g = pytensor.shared(np.zeros(3), name="g")
    loss = pt.sqr(pt.dot(x, w)).sum()
    gradient = synk.function([x], (loss, "sum"), updates=[(g, pt.grad(loss, w), "sum")], name="gradient")
    update = synk.function([], updates=[(w, w - 1e-4 * g)], name="update")
    return synk.sequence(gradient, (synk.all_reduce, g, "sum"), update, name="train"), w


@pytest.mark.parametrize("n_ranks", [slow(1), 2])
def test_a_train_step_is_profiled(ranks, n_ranks, tmp_path):
    ranks(n_ranks)
    train, _ = training()
    report = train.profile(ROWS, n_calls=3)
    assert report.name == "train"
    assert report.n_calls == 3
    assert {row["program"] for row in report.rows} == {"gradient", "update"}
    assert {row["runs"] for row in report.rows} == {3}
    assert [(group["op"], group["runs"]) for group in report.collectives] == [("all_reduce", 3)]
    assert {row["built"].rpartition(":")[0] for row in report.rows} - {""} == {__file__}
    assert report.peak_bytes > 0
    report.save_trace(tmp_path / "trace.json")
    assert "all_reduce" in (tmp_path / "trace.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "sums"),
    [slow(updates.sgd, {}), (updates.clipped(updates.sgd, 1.0), {"sums of update": 6, "all_reduce": 3})],
)
def test_an_update_of_parts_is_profiled(ranks, rule, sums):
    ranks(2)
    x, w = pt.dmatrix("x"), pytensor.shared(np.ones(3), name="w")
    step = make_train_function(pt.sqr(x @ w).mean(), [w], [x], rule, learning_rate=0.01)
    report = step.profile(ROWS, n_calls=3)
    programs = {"gradient", "update", *[name for name in sums if name != "all_reduce"]}
    assert {(row["program"], row["runs"]) for row in report.rows} == {(name, 3) for name in programs}
    # All ranks meet before each part and after it.
    assert {group["op"]: group["runs"] for group in report.collectives} == {"sharded update": 6, **sums}


def test_calls_before_and_after_a_profile_are_not_in_it(ranks):
    ranks(2)
    x = pt.dmatrix("x")
    f = synk.function([x], (pt.exp(x).sum(), "sum"), name="f")
    rows = synk.data(ROWS)
    calls = [f(rows) for _ in range(3)]  # the last ones send the same step again
    profile = Profile()
    with f._owner.functions.profiled(profile):
        calls += [f(rows) for _ in range(2)]
    calls += [f(rows) for _ in range(3)]
    assert {row["runs"] for row in profile.report().rows} == {2}
    assert len({float(value) for value in calls}) == 1


def test_a_profile_makes_updates_once_more_than_it_counts(ranks):
    ranks(2)
    count = pytensor.shared(np.asarray(0), name="count")
    f = synk.function([], (count * 1, None), updates=[(count, count + 1)])
    f()
    f.profile(n_calls=4)
    assert f() == 6
    assert synk.gather(count).tolist() == [7, 7]


@pytest.mark.slow
def test_the_numbers_are_those_of_plain_calls(ranks):
    ranks(2)
    values = []
    for profiled in (False, True):
        train, w = training()
        if profiled:
            train.profile(ROWS, n_calls=3, num_slices=2)
        else:
            for _ in range(4):
                train(ROWS, num_slices=2)
        values.append((train(ROWS), synk.gather(w, nd_up=1)))
    np.testing.assert_array_equal(values[0][0], values[1][0])
    np.testing.assert_array_equal(values[0][1], values[1][1])


def test_after_a_profile_nothing_is_watched(ranks):
    ranks(2)
    x = pt.dmatrix("x")
    f = synk.function([x], (pt.exp(x).sum(), "sum"))
    f(ROWS)
    communicator = synk.run.session.current.session("test")._rank.communicator
    program = synk.run.session.current.session("test")._rank.program(f.ready())
    plain = program.variants.whole
    report = f.profile(ROWS, n_calls=1)
    with pytest.raises(IndexError):
        f.profile(ROWS, batch=100)
    f(ROWS)
    assert program.variants.whole is plain
    assert synk.run.session.current.session("test")._rank.communicator is communicator
    assert {row["runs"] for row in report.rows} == {1}


def test_a_profile_of_no_calls_is_refused(ranks):
    ranks(1)
    f = synk.function([], pt.constant(1.0) * 2)
    with pytest.raises(ValueError, match="n_calls=0 measures nothing"):
        f.profile(n_calls=0)


def test_modes_without_array_programs_are_refused_and_the_run_goes_on(ranks):
    ranks(2)
    x = pt.dmatrix("x")
    f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    with pytest.raises(TypeError, match="makes no array programs"):
        f.profile(ROWS)
    assert f(ROWS) == ROWS.sum()
    g = synk.function([x], (x.sum(), "sum"), mode=array_mode())
    assert g.profile(ROWS, n_calls=1).rows


# --- mode="debug" -----------------------------------------------------------------------------------


def test_a_worker_that_computes_wrong_is_found(ranks):
    ranks(2)
    x = pt.dmatrix("x")
    y = Double()(x) + 1
    plain = synk.function([x], (y, "gather"))
    np.testing.assert_array_equal(plain(ROWS)[:4], 2 * ROWS[:4] + 1)
    checked = synk.function([x], (y, "gather"), mode="debug")
    with pytest.raises(DebugError, match="rank 1.*: .*Double.* values of output 0 are wrong") as caught:
        checked(ROWS)
    assert [failure.rank for failure in caught.value.failures] == [1]
    assert "y = Double()(x) + 1" in str(caught.value)


def test_unknown_modes_are_refused(ranks):
    ranks(2)
    x = pt.dmatrix("x")
    with pytest.raises(ValueError, match="debgu"):
        synk.function([x], (x.sum(), "sum"), mode="debgu")


# --- whose line -------------------------------------------------------------------------------------


def test_an_error_on_a_worker_names_the_users_line(ranks):
    ranks(3)
    x = pt.dmatrix("x")
    third = x[2].sum()
    f = synk.function([x], (third, "sum"))
    with pytest.raises(IndexError) as caught:
        f(ROWS)  # rank 2 has two rows
    assert [failure.rank for failure in caught.value.failures] == [2]
    message = str(caught.value)
    assert "Worker 2 of 3" in message
    assert f'File "{__file__}"' in message
    assert "third = x[2].sum()" in message
    assert "x: float64 (2, 3)" in message
