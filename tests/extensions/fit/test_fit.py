import signal
import sys
from functools import partial

import numpy as np
import pytest

import synk
from support.cases.fitting import N_ROWS, anew, make, numbers
from synk.extensions import batches
from synk.extensions.fit import Callback, fit
from synk.extensions.fit.callback import Hooks
from synk.extensions.fit.recovery import Commits

N_RANKS = 1


def by_hand(case, epochs, batch_size, seed):
    inputs = case.step.build_inputs(*case.data)
    found = []
    for epoch in range(epochs):
        total = 0.0
        for batch in batches(N_ROWS, batch_size, seed=(seed, epoch)):
            total += float(case.step(*inputs, batch=batch)) * len(batch)
        found.append(total / N_ROWS)
    return found


def test_it_does_what_the_loop_by_hand_does_and_uses_remainder_rows(ranks):
    ranks(2)
    case = make()
    expected = by_hand(case, 3, 10, seed=4)
    history = fit(anew(case).step, case.data, epochs=3, batch_size=10, seed=4, progress=False)
    assert history["loss"] == expected
    assert history.steps == 15
    assert not history.interrupted


def test_any_number_of_ranks_gives_the_same_run_with_validation_of_all_rows(ranks):
    found = []
    for n_ranks in (1, 3):
        ranks(n_ranks)
        case = make()
        history = fit(
            case.step,
            case.data,
            epochs=2,
            batch_size=8,
            validation=case.validation,
            validation_slices=2,
            metrics=["loss", "worst"],
            progress=False,
        )
        rows, targets = case.validation[1]
        errors = rows @ case.w.get_value() - targets
        assert history["val_loss"][-1] == pytest.approx((errors**2).mean())
        assert history["val_worst"][-1] == pytest.approx(abs(errors).max())
        found.append(numbers(history))
        synk.close()
    assert list(found[0][0]) == ["epoch", "loss", "val_loss", "val_worst"]
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


class Presses(Callback):
    """Presses ^C so often in a step."""

    def __init__(self, at, times):
        self.at, self.times = at, times

    def on_step_end(self, training):
        if training.history.steps == self.at:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


def test_an_interrupt_ends_after_the_step_and_a_second_one_raises(ranks):
    ranks(2)
    case, before = make(), signal.getsignal(signal.SIGINT)
    history = fit(case.step, case.data, epochs=3, batch_size=10, callbacks=[Presses(7, 1)], progress=False)
    assert history.interrupted
    assert (history.steps, len(history)) == (7, 1)
    with pytest.raises(KeyboardInterrupt):
        fit(case.step, case.data, epochs=3, batch_size=10, callbacks=[Presses(7, 2)], progress=False)
    assert signal.getsignal(signal.SIGINT) is before
    case.step(*case.data)  # the run goes on


class Events(Callback):
    """Notes what it is called for."""

    def __init__(self):
        self.seen = []

    def on_train_begin(self, training):
        self.seen.append("begin")

    def on_epoch_begin(self, training):
        self.seen.append(f"epoch {training.epoch} from {training.batch}")

    def on_step_end(self, training):
        self.seen.append((training.epoch, training.batch, training.history.steps, float(training.outputs)))

    def on_epoch_end(self, training):
        self.seen.append((training.epoch, sorted(training.metrics)))

    def on_train_end(self, training):
        self.seen.append("end" if training.error is None else type(training.error).__name__)


def test_callbacks_are_called_in_order_with_what_has_happened(case):
    events = Events()
    fit(case.step, case.data, epochs=2, batch_size=40, callbacks=[events], progress=False)
    said = [entry[:3] if isinstance(entry, tuple) else entry for entry in events.seen]
    entries = ["epoch", "loss", "rows_per_second", "seconds"]
    epochs = [
        [f"epoch {epoch} from 0", (epoch, 1, 2 * epoch + 1), (epoch, 2, 2 * epoch + 2), (epoch, entries)]
        for epoch in range(2)
    ]
    assert said == ["begin", *epochs[0], *epochs[1], "end"]


def test_only_overridden_methods_are_called_after_a_step():
    events = Events()
    assert Hooks([Callback(), events, Callback()]).on_step_end == [events.on_step_end]


def test_all_callbacks_end_whatever_one_raises(case):
    class Raises(Callback):
        def on_epoch_end(self, training):
            raise RuntimeError("mine")

        def on_train_end(self, training):
            raise ValueError("at the end")

    events = Events()
    with pytest.raises(ValueError, match="at the end") as caught:
        fit(case.step, case.data, epochs=1, batch_size=9, callbacks=[events, Raises()], progress=False)
    assert "mine" in str(caught.value.__context__)
    assert events.seen[-1] == "RuntimeError"


def test_a_handler_of_the_script_is_left_alone(case):
    pressed, before = [], signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        history = fit(
            case.step, case.data, epochs=1, batch_size=10, callbacks=[Presses(2, 1)], progress=False
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [1]
    assert not history.interrupted


def calls_of(action):
    """Return how often Python calls something in an action, as cProfile counts."""
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return n_calls


@pytest.mark.parametrize("recover", [0, 1])
def test_a_step_makes_few_calls_beyond_the_loop_by_hand(case, monkeypatch, recover):
    """On one rank: several wait for each other, now in more calls and now in fewer."""
    monkeypatch.setattr(Commits, "commit", lambda commits, training: setattr(commits, "_due", np.inf))
    inputs = case.step.build_inputs(*case.data)

    def loop(epochs):
        for epoch in range(epochs):
            for batch in batches(N_ROWS, 1, seed=(0, epoch)):
                case.step(*inputs, batch=batch)

    def fitted(epochs):
        callbacks, options = [Callback(), Callback()], {"batch_size": 1, "progress": False}
        fit(case.step, inputs, epochs=epochs, callbacks=callbacks, recover=recover, **options)

    def a_step(run):
        run(1)
        return (calls_of(partial(run, 5)) - calls_of(partial(run, 1))) / (4 * N_ROWS)

    assert a_step(fitted) - a_step(loop) < 10 + 2 * recover


def test_a_line_is_printed_for_every_epoch_where_there_is_no_terminal(case, capsys):
    fit(case.step, case.data, epochs=2, batch_size=20)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["epoch", "1/2", "loss"], ["epoch", "2/2", "loss"]]
    assert all(line.endswith("rows/s") for line in lines)


def test_a_bar_is_shown_in_a_terminal(case, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    fit(case.step, case.data, epochs=2, batch_size=20, validation=case.validation)
    said = capsys.readouterr().out
    assert "epoch 2/2" in said
    assert "1/3" in said
    assert "val_loss" in said


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epochs": -1}, ValueError, "epochs=-1 is less than 1"),
        ({"epochs": 1.5}, TypeError, "epochs=1.5 is not an integer"),
        ({"batch_size": 0}, ValueError, "batch_size=0 is less than 1"),
        ({"batch_size": None}, TypeError, "batch_size is missing"),
        ({"seed": -3}, ValueError, "seed=-3 is less than 0"),
        ({"data": (np.ones((0, 4)), np.ones(0))}, ValueError, "no rows"),
        ({"data": (np.ones((5, 4)), np.ones(4))}, ValueError, "different numbers of rows: {'x': 5, 'y': 4}"),
        ({"data": (np.ones((5, 4)),)}, TypeError, "1 entries, but .* has 2 inputs"),
        ({"data": {"x": np.ones((5, 4)), "z": np.ones(5)}}, TypeError, "the inputs of 'train' are"),
        ({"data": 3}, TypeError, "leave it out"),
        ({"data": lambda rows: None, "n_rows": 0}, ValueError, "n_rows=0 is less than 1"),
        ({"data": lambda rows: None}, TypeError, "leave it out; or pass n_rows"),
        ({"num_slices": 0}, ValueError, "num_slices=0 is less than 1"),
        ({"n_rows": 5}, TypeError, "n_rows=5 is for data that is a function"),
        ({"data": iter([]), "batch_size": None, "epochs": 2}, ValueError, "yields each batch once"),
        ({"data": lambda epoch: [], "batch_size": None}, ValueError, "no batches in epoch 0"),
        ({"callbacks": [print]}, TypeError, "is no Callback"),
        ({"validation": (3, ())}, TypeError, "validation begins with a int, not with a"),
        ({"validation": print}, TypeError, "not a pair; pass .function, data."),
        ({"validation_slices": 0, "validation": "case"}, ValueError, "validation_slices=0 is less than 1"),
        (
            {"validation": (np.ones((5, 4)), np.ones(4))},
            ValueError,
            "numbers of rows: {'x': 5, 'y': 4}",
        ),
        ({"validation": (np.ones((0, 4)), np.ones(0))}, ValueError, "have no rows"),
        ({"metrics": ["seconds"]}, ValueError, r"two entries of an epoch are called \['seconds'\]"),
        ({"metrics": []}, ValueError, "returns 1 numbers, but"),
        ({"metrics": ["loss", "accuracy"]}, ValueError, "names 2 numbers, but at most 1 are returned"),
        ({"metrics": "mae"}, TypeError, "metrics='mae' is one string"),
    ],
)
def test_wrong_arguments_are_told(case, options, error, message):
    given = {"data": case.data, "epochs": 1, "batch_size": 5, "progress": False, **options}
    if given.get("validation") == "case":
        given["validation"] = case.validation
    elif isinstance(given.get("validation"), tuple) and isinstance(given["validation"][0], np.ndarray):
        given["validation"] = case.evaluate, given["validation"]
    with pytest.raises(error, match=message):
        fit(case.step, given.pop("data"), **given)


def test_validation_may_have_names_of_its_own(case):
    validation = (*case.validation, ["loss", "worst"])
    history = fit(case.step, case.data, epochs=1, batch_size=5, validation=validation, progress=False)
    assert history.metrics == ["loss", "val_loss", "val_worst"]


def test_a_step_that_is_no_function_of_synk_is_told(case):
    with pytest.raises(TypeError, match=r"step=.* is no synk\.Function; pass what make_train"):
        fit(lambda *inputs: 0, case.data, epochs=1, batch_size=5)


def test_names_given_twice_are_told(case):
    with pytest.raises(ValueError, match=r"are called \['a'\]"):
        fit(case.step, case.data, epochs=1, batch_size=5, validation=case.validation, metrics=["a", "a"])
