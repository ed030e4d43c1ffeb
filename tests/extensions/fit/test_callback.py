import json
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import synk
from support.cases.fitting import Pretends, anew, fitted, make, numbers
from support.slow import slow
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

N_RANKS = 1
RATE = pytensor.shared(0.1, name="rate")


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


# --- by runs of their own: before the one that all others share ------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [slow("shared"), "data"])
def test_a_rate_is_reduced_on_a_plateau_and_stays_so_in_a_training_that_goes_on(ranks, tmp_path, kind):
    ranks(2)
    losses = (5,) * 6
    if kind == "shared":
        rate = pytensor.shared(0.5, name="rate")
        case = make(rule=updates.sgd, learning_rate=rate)
        data = case.data
    else:
        given = pt.dscalar("given")
        case, rate = make(rule=updates.sgd, learning_rate=given, bcast_inputs=[given]), synk.data(0.5)
        data = (*case.data, rate)

    def train_with(epochs, resume=None):
        anew(case)
        if kind == "shared":
            synk.broadcast(rate, 0.5)
        else:
            rate.set_value(0.5)
        sees = Sees(rate)
        reduce = ReduceOnPlateau(rate, factor=0.5, patience=2, least=0.2)
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


@pytest.mark.slow
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
        rate_at = pytensor.function([t], as_expression, givens={counter: t}, mode=Mode("py", None))
        steps = range(15) if n_ranks == 3 else range(15, 20)
        expected += [float(rate_at(step)) for step in steps]
        found += sees.seen[:-1]
        assert synk.get_value(n_ranks - 1, rate) == pytest.approx(0.02 * n_ranks)
        synk.close()
    assert found == pytest.approx(expected)


def test_nan_stops_a_training_and_names_ranks_and_variables(ranks):
    ranks(2)
    case = make()
    rows, targets = (values.copy() for values in case.data)
    rows[44, 1] = np.nan
    with pytest.raises(synk.NonFinite, match=r"on rank [01]: .* of 'w'") as caught:
        fitted(case, StopOnNaN(), data=(rows, targets), shuffle=False)
    [note] = caught.value.__notes__
    assert note.startswith("after step 5: {'loss': nan}; a smaller learning rate may help")
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


# --- patience --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "min_delta", "patience", "values", "ends"),
    [
        ("min", 0, 1, [3, 2, 2], 3),
        ("min", 0, 2, [3, 2, 2, 1, 1, 1], 6),
        ("min", 0.5, 1, [3, 2, 1.6], 3),
        ("max", 0, 1, [1, 2, 3, 2], 4),
        ("min", 0, 2, [np.nan, np.nan], 2),
        ("min", 0, 1, [5, np.inf], 2),
        ("min", 0, 3, [3, 2, 1, 0], None),
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


def test_early_stopping_ends_a_training_and_one_that_goes_on_ends_at_once(case, tmp_path):
    def callbacks():
        return Pretends(5, 4, 4, 3, 3, 3), EarlyStopping(patience=2), Checkpoints(tmp_path)

    history = fitted(anew(case), *callbacks(), epochs=9)
    assert len(history) == 6
    assert history.stopped == "val_loss was no better than 3 for too long"
    again = fitted(anew(case), *callbacks(), epochs=9, resume=tmp_path)
    assert (again.steps, again.stopped) == (history.steps, history.stopped)


# --- rates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (partial(ReduceOnPlateau, None, factor=2), "factor=2 is not between 0 and 1"),
        (partial(EarlyStopping, patience=0), "patience=0 is less than 1"),
        (partial(EarlyStopping, min_delta=-1), "min_delta=-1 is negative"),
        (partial(EarlyStopping, mode="up"), "neither"),
        (partial(LinearScaling, RATE, 1, warm_up=-1), "warm_up=-1"),
        (partial(JSONLog, "x", every=0), "every=0"),
        (partial(TensorBoard, "x", every=0), "every=0"),
    ],
)
def test_wrong_arguments_are_told(make_one, message):
    with pytest.raises(ValueError, match=message):
        make_one()


def test_patience_may_be_an_integer_of_numpys():
    assert EarlyStopping(patience=np.int64(2))
    with pytest.raises(TypeError, match="patience=2.0 is not an integer"):
        EarlyStopping(patience=2.0)


@pytest.mark.parametrize("kind", [partial(ReduceOnPlateau), partial(LinearScaling, base=1)])
@pytest.mark.parametrize("rate", [0.1, None, pytensor.shared(np.ones(2))], ids=["float", "None", "a vector"])
def test_a_rate_that_is_none_is_told(kind, rate):
    with pytest.raises(TypeError, match="neither a shared scalar"):
        kind(rate)


def test_a_training_of_nothing_but_nan_stops_early_and_says_so(case):
    history = fitted(case, Pretends(*[np.nan] * 5), EarlyStopping(), epochs=5)
    assert (len(history), history.stopped) == (1, "val_loss was no better than NaN for too long")


@pytest.mark.parametrize("kind", [EarlyStopping, partial(ReduceOnPlateau, RATE)])
def test_a_metric_that_is_none_is_told_before_the_first_step(case, kind):
    with pytest.raises(
        ValueError, match=r"val_accuracy'\) names no metric; there are \['loss', 'val_loss', "
    ):
        fitted(case, kind("val_accuracy"))


def test_states_go_to_the_callbacks_they_are_of(case, tmp_path):
    one, other = (pytensor.shared(1.0, name=name) for name in ("one", "other"))

    def callbacks():
        return [ReduceOnPlateau(one, factor=0.5, patience=1), ReduceOnPlateau(other, "loss", factor=0.5)]

    fitted(anew(case), Pretends(5, 5, 5), *callbacks(), Checkpoints(tmp_path))
    assert one.get_value() == 0.25
    one.set_value(7.0)
    fitted(anew(case), Pretends(), *reversed(callbacks()), Checkpoints(tmp_path), resume=tmp_path)
    assert (one.get_value(), other.get_value()) == (0.25, 1)


def test_callbacks_of_a_second_training_begin_anew(case, tmp_path):
    callbacks = [EarlyStopping(patience=2), CSVLog(tmp_path / "log.csv"), JSONLog(tmp_path / "log.jsonl")]
    for _ in range(2):
        history = fitted(anew(case), Pretends(3, 3, 3, 3), *callbacks, epochs=4)
        assert len(history) == 3
        for name, header in (("log.csv", 1), ("log.jsonl", 0)):
            assert len((tmp_path / name).read_text().splitlines()) == 3 + header


def test_a_callback_adds_a_metric_that_others_go_by(case, tmp_path):
    class Adds(Callback):
        adds = ("mine",)

        def on_epoch_end(self, training):
            training.metrics["mine"] = 1.0

    history = fitted(case, Adds(), EarlyStopping("mine"), CSVLog(tmp_path / "log.csv"))
    assert history["mine"] == [1, 1]
    assert history.stopped == "mine was no better than 1 for too long"
    assert "mine" in (tmp_path / "log.csv").read_text().splitlines()[0]


def test_callbacks_end_in_their_order_and_only_if_they_have_begun(case):
    said = []

    class Says(Callback):
        def __init__(self, name, last=False, fails=False):
            self.called, self.last, self.fails = name, last, fails

        def on_train_begin(self, training):
            if self.fails:
                raise RuntimeError("mine")

        def on_train_end(self, training):
            said.append(self.called)

    fitted(anew(case), Says("saves", last=True), Says("first"), Says("second"), epochs=1)
    assert said == ["first", "second", "saves"]
    with pytest.raises(RuntimeError, match="mine"):
        fitted(anew(case), Says("begun"), Says("never", fails=True), epochs=1)
    assert said[3:] == ["begun"]


def test_a_method_that_nobody_calls_is_told(case):
    class Misspelt(Callback):
        def on_epoch_ends(self, training):
            pass

    with pytest.raises(TypeError, match=r"has \['on_epoch_ends'\], which nobody calls; there are \['on_"):
        fitted(case, Misspelt())


def test_a_callback_without_a_list_is_told(case):
    with pytest.raises(TypeError, match=r"is no list; pass \[StopOnNaN\(...\)\]"):
        fit(case.step, case.data, epochs=1, batch_size=5, callbacks=StopOnNaN())


@pytest.mark.parametrize("when", ["on_epoch_begin", "on_train_begin"])
def test_a_training_that_is_stopped_before_a_step_does_none(case, tmp_path, when):
    def stop(self, training):
        training.stop("test")

    stops = type("Stops", (Callback,), {when: stop})
    history = fitted(case, stops(), Checkpoints(tmp_path, best="loss"))
    assert (history.steps, history.stopped) == (0, "test")


def test_a_training_that_is_stopped_in_its_last_epoch_is_complete(case):
    class Stops(Callback):
        def on_epoch_end(self, training):
            if training.epoch == 2:
                training.interrupt("test")

    history = fitted(case, Stops())
    assert (len(history), history.stopped, history.interrupted) == (3, None, False)


# --- NaN -------------------------------------------------------------------------------------------------


def test_a_loss_alone_may_not_be_finite(module_ranks):
    x, w = pt.dvector("x"), pytensor.shared(1.0, name="w")
    step = train.make_train_function(w * x.mean() + np.inf, [w], [x], updates.sgd, learning_rate=0.1)
    with pytest.raises(FloatingPointError, match="after step 1: {'loss': inf}; .*, though all variables"):
        fit(step, np.ones(4), epochs=1, batch_size=2, callbacks=[StopOnNaN()], progress=False)
