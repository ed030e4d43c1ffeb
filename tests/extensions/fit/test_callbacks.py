import csv
import json
import sys
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.fitting import make, numbers
from synk.extensions import schedules, train, updates
from synk.extensions.fit import (
    Callback,
    Checkpoints,
    CSVLog,
    EarlyStopping,
    JSONLog,
    LinearScaling,
    ReduceOnPlateau,
    StopOnNaN,
    TensorBoard,
    fit,
)
from synk.extensions.fit.monitor import Monitor, Patience


def fitted(case, *callbacks, epochs=3, **options):
    options = {"batch_size": 10, "validation": case.validation, "progress": False, **options}
    return fit(case.step, options.pop("data", case.data), epochs=epochs, callbacks=callbacks, **options)


class Sees(Callback):
    """Notes the value of a shared scalar or Data before every step, and after the last."""

    def __init__(self, rate):
        self.rate, self.seen = rate, []

    def on_epoch_begin(self, training):
        self.seen = self.seen[:-1]  # an epoch's end may have changed it
        self.on_step_end(training)

    def on_step_end(self, training):
        value = self.rate.data if isinstance(self.rate, synk.Data) else self.rate.get_value()
        self.seen.append(float(value))


class StopsAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, training):
        if training.history.steps == self.step:
            training.stop("test")


class Pretends(Callback):
    """Gives epochs values of validation in place of their own."""

    def __init__(self, *values):
        self.values = values

    def on_epoch_end(self, training):
        training.metrics["val_loss"] = self.values[training.epoch]


# --- patience --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "min_delta", "patience", "values", "ends"),
    [
        ("min", 0, 0, [3, 2, 2], 3),
        ("min", 0, 1, [3, 2, 2, 1, 1, 1], 6),
        ("min", 0.5, 0, [3, 2, 1.6], 3),
        ("max", 0, 0, [1, 2, 3, 2], 4),
        ("min", 0, 1, [np.nan, np.nan], 2),
        ("min", 0, 0, [5, np.inf], 2),
        ("min", 0, 2, [3, 2, 1, 0], None),
    ],
)
def test_patience_ends_after_so_many_epochs_that_are_no_better(mode, min_delta, patience, values, ends):
    whole = Patience(Monitor("loss", mode, min_delta), patience)
    found = [whole.note(value) for value in values]
    assert found.index(True) + 1 == ends if ends else not any(found)
    again = Patience(Monitor("loss", mode, min_delta), patience)  # goes on from where another was
    for value in values:
        other = Patience(Monitor("loss", mode, min_delta), patience)
        other.load_state(json.loads(json.dumps(again.state())))
        other.note(value)
        again = other
    assert again.state() == pytest.approx(whole.state(), nan_ok=True)


def test_early_stopping_ends_a_training_and_one_that_goes_on_ends_at_once(ranks, tmp_path):
    ranks(1)

    def callbacks():
        return Pretends(5, 4, 4, 3, 3, 3), EarlyStopping(patience=1), Checkpoints(tmp_path)

    history = fitted(make(), *callbacks(), epochs=9)
    assert len(history) == 6
    assert history.stopped == "val_loss was no better than 3 for too long"
    again = fitted(make(), *callbacks(), epochs=9, resume=tmp_path)
    assert (again.steps, again.stopped) == (history.steps, history.stopped)


# --- rates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "data"])
def test_a_rate_is_reduced_on_a_plateau_and_stays_so_in_a_training_that_goes_on(ranks, tmp_path, kind):
    ranks(2)
    losses = (5,) * 6

    def train_with(epochs, resume=None):
        if kind == "shared":
            rate = pytensor.shared(0.5, name="rate")
            case = make(rule=updates.sgd, learning_rate=rate)
            data = case.data
        else:
            given = pt.dscalar("given")
            case, rate = make(rule=updates.sgd, learning_rate=given, bcast_inputs=[given]), synk.data(0.5)
            data = (*case.data, rate)
        sees = Sees(rate)
        reduce = ReduceOnPlateau(rate, factor=0.5, patience=1, least=0.2)
        callbacks = [Pretends(*losses), reduce, sees, Checkpoints(tmp_path)]
        history = fitted(case, *callbacks, epochs=epochs, data=data, resume=resume)
        return sees.seen, numbers(history)

    first, _ = train_with(3)
    seen, both = train_with(6, tmp_path)
    assert first[:-1] == [0.5] * 15
    assert seen[:-1] == [0.25] * 10 + [0.2] * 5
    for path in tmp_path.iterdir():
        path.unlink()
    assert train_with(6)[1] == both


def test_a_rate_follows_the_number_of_ranks_after_a_warm_up(ranks, tmp_path):
    expected, found = [], []
    for n_ranks, epochs in ((3, 3), (2, 4)):
        ranks(n_ranks)
        rate = pytensor.shared(9.0, name="rate")
        case, sees = make(rule=updates.sgd, learning_rate=rate), Sees(rate)
        counter = schedules.counter()
        as_expression = schedules.warm_up(counter, schedules.scaled(0.02, n_ranks), 7, start=1 / n_ranks)
        fitted(
            case,
            LinearScaling(rate, 0.02, warm_up=7),
            sees,
            Checkpoints(tmp_path),
            epochs=epochs,
            resume=tmp_path,
        )
        t = pt.lscalar("t")
        rate_at = pytensor.function([t], as_expression, givens={counter: t})
        steps = range(15) if n_ranks == 3 else range(15, 20)
        expected += [float(rate_at(step)) for step in steps]
        found += sees.seen[:-1]
        assert synk.get_value(n_ranks - 1, rate) == pytest.approx(0.02 * n_ranks)
        synk.close()
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (partial(ReduceOnPlateau, None, factor=2), "factor=2 is not between 0 and 1"),
        (partial(EarlyStopping, patience=-1), "patience=-1 is negative"),
        (partial(EarlyStopping, min_delta=-1), "min_delta=-1 is negative"),
        (partial(EarlyStopping, mode="up"), "neither"),
        (partial(LinearScaling, None, 1, warm_up=-1), "warm_up=-1"),
        (partial(JSONLog, "x", every=0), "every=0"),
        (partial(TensorBoard, "x", every=0), "every=0"),
    ],
)
def test_wrong_arguments_are_told(make_one, message):
    with pytest.raises(ValueError, match=message):
        make_one()


@pytest.mark.parametrize("kind", [EarlyStopping, partial(ReduceOnPlateau, None)])
def test_a_metric_that_is_none_is_told_before_the_first_step(ranks, kind):
    ranks(1)
    with pytest.raises(
        ValueError, match=r"val_accuracy'\) names no metric; there are \['loss', 'val_loss', "
    ):
        fitted(make(), kind("val_accuracy"))


# --- logs ------------------------------------------------------------------------------------------------


def test_logs_have_a_line_for_every_epoch_and_take_back_what_was_after_a_checkpoint(ranks, tmp_path):
    ranks(1)

    def run(name, *others, **options):
        csv_log, json_log = CSVLog(tmp_path / f"{name}.csv"), JSONLog(tmp_path / f"{name}.jsonl", every=2)
        fitted(make(), csv_log, json_log, *others, epochs=4, **options)
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        with open(tmp_path / f"{name}.csv") as file:
            rows = list(csv.DictReader(file))
        for line in [*lines, *rows]:
            line.pop("seconds", None)
            line.pop("rows_per_second", None)
        return lines, rows

    lines, rows = run("whole")
    assert [line["step"] for line in lines if "step" in line] == list(range(2, 21, 2))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["val_loss"]) for row in rows] == [
        line["val_loss"] for line in lines if "val_loss" in line
    ]

    class Dies(Callback):
        def on_epoch_end(self, training):
            if training.epoch == 2:
                raise RuntimeError

    with pytest.raises(RuntimeError):  # after its line of epoch 2, before its checkpoint
        run("part", Dies(), Checkpoints(tmp_path / "saved"))
    assert len((tmp_path / "part.csv").read_text().splitlines()) == 4
    for name in ("part.csv", "part.jsonl"):  # and much more
        (tmp_path / name).write_text((tmp_path / name).read_text() + "{}\n" * 1000)
    assert run("part", Checkpoints(tmp_path / "saved"), resume=tmp_path / "saved") == (lines, rows)
    assert run("part") == (lines, rows)  # which begins anew


def test_tensorboard_reads_the_numbers(ranks, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    ranks(1)
    board, saved = tmp_path / "board", tmp_path / "saved"

    class Dies(Callback):
        def on_step_end(self, training):
            if training.history.steps == 13:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fitted(make(), TensorBoard(board), Dies(), Checkpoints(saved))
    history = fitted(make(), TensorBoard(board, every=3), Checkpoints(saved), resume=saved)
    read = accumulators.EventAccumulator(str(board))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["epoch/loss", "epoch/val_loss", "epoch/val_output_1", "loss"]
    epochs = read.Scalars("epoch/val_loss")
    assert [event.step for event in epochs] == [5, 10, 15]
    assert [event.value for event in epochs] == pytest.approx(history["val_loss"])
    # Of the first run, those before its last checkpoint; then of the second.
    assert [event.step for event in read.Scalars("loss")] == [*range(1, 11), 12, 15]


def test_a_missing_tensorboard_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(
        ImportError, match=r"tensorboard is not installed. Use pip install synk\[tensorboard\]"
    ):
        TensorBoard("folder")


# --- NaN -------------------------------------------------------------------------------------------------


def test_nan_stops_a_training_and_names_ranks_and_variables(ranks):
    ranks(2)
    case = make()
    rows, targets = (values.copy() for values in case.data)
    rows[44, 1] = np.nan
    with pytest.raises(synk.NonFinite, match=r"on rank [01]: .* of 'w'") as caught:
        fitted(case, StopOnNaN(), data=(rows, targets), shuffle=False)
    assert caught.value.__notes__ == ["after step 5: {'loss': nan}"]
    assert {failure.rank for failure in caught.value.failures} == {0, 1}


def test_checked_gradients_name_the_rank_where_it_began_and_spare_the_parameters(ranks):
    ranks(2)
    case = make(check_finite=True)
    rows, targets = (values.copy() for values in case.data)
    rows[19, 1] = np.nan  # in the second half of the second batch
    with pytest.raises(synk.NonFinite, match="not finite on rank 1: .*gradient") as caught:
        fitted(case, StopOnNaN(), data=(rows, targets), shuffle=False)
    assert [failure.rank for failure in caught.value.failures] == [1]
    assert np.isfinite(case.w.get_value()).all()


def test_a_loss_alone_may_not_be_finite(ranks):
    ranks(1)
    x, w = pt.dvector("x"), pytensor.shared(1.0, name="w")
    step = train.make_train_function(w * x.mean() + np.inf, [w], [x], updates.sgd, learning_rate=0.1)
    with pytest.raises(FloatingPointError, match="after step 1: {'loss': inf}, though all variables"):
        fit(step, np.ones(4), epochs=1, batch_size=2, callbacks=[StopOnNaN()], progress=False)
