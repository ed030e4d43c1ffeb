import base64
import os
import signal
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytensor
import pytest

import synk
from support.cases.fitting import anew, make, numbers, values
from support.slow import slow
from synk.extensions import checkpoint, updates
from synk.extensions.checkpoint import file_format, store
from synk.extensions.checkpoint.contents import copies
from synk.extensions.fit import Callback, Checkpoints, best, fit, latest
from synk.extensions.fit.folder import checkpoints_in

# Of a version of synk that did not know of trainings: w = 0, 1, 2, 3; a generator of seed 5; epoch 3.
OLD = (
    "c-reMuFT6$F5qHhU|{$O#MMgWN>&QhN+~6k1*t%ml1-Y0l8%B>aYiDTA8is_3*wd}mZX9eB3Mb8CGqL0d8tK-CHX}ltpU#NW+qBl"
    "RT~?a7+abfniv@x0tsUaLo*W-Qxj7QQ$ur069Z!l14A<lLvs_L-pssYpn4-?V?#@0b5jEY3v)9A6QCLsLm+8tVh+?{XklVzWME`y"
    "VF_|tMq+V%X=YxDu@O+80Z;(MNli}$Imw_Fq$0H-KRE;JoU+86Qm}JsYZ*|$2YV>P0YY&&Jaj!GwBA1QlXv@dBQB;NeOEbbmSucq"
    "ThMY@aIw{*I5z-)Usu)"
)


N_RANKS = 1  # of `module_ranks`
VERSION_AT = struct.calcsize("<8s")  # in a file


class StopsAt(Callback):
    """Stops after so many steps, and keeps what it has counted."""

    def __init__(self, step=None):
        self.step, self.seen = step, 0

    def on_step_end(self, training):
        self.seen += 1
        if training.history.steps == self.step:
            training.stop("test")

    def state(self):
        return {"seen": self.seen}

    def load_state(self, state):
        self.seen = state["seen"]


def train(case, folder=None, epochs=4, stop=None, resume=None, **options):
    """Train, with checkpoints in a folder; return the numbers of the history, and all values afterwards."""
    callbacks = [StopsAt(stop), StopsAt(None)]
    if folder is not None:
        callbacks.insert(0, Checkpoints(folder, **options))
    history = fit(
        case.step,
        case.data,
        epochs=epochs,
        batch_size=10,
        seed=7,
        validation=case.validation,
        callbacks=callbacks,
        resume=resume,
        progress=False,
    )
    return numbers(history), values(case), [callback.seen for callback in callbacks[-2:]]


# --- by runs of their own: before the one that all others share ------------------------------------------


@pytest.mark.parametrize("stop", [7, *(slow(stop) for stop in (10, 1))])
def test_a_training_goes_on_with_the_bits_of_an_undisturbed_one(ranks, tmp_path, stop):
    """Noise is drawn for each row, and ranks have other numbers of rows: so each stream is somewhere else."""
    ranks(2)
    case = make(noise=True)
    expected = train(case)
    train(anew(case), tmp_path, stop=stop)
    synk.close()
    ranks(2)
    assert train(make(noise=True), tmp_path, resume=tmp_path) == expected
    assert len(expected[0]) == 4


@pytest.mark.slow
def test_losses_are_equal_on_other_numbers_of_ranks_from_the_middle_of_epochs(ranks, tmp_path):
    ranks(1)
    expected, *_ = train(make())
    synk.close()
    for n_ranks, stop in ((2, 3), (3, 12), (1, None)):
        ranks(n_ranks)
        found, *_ = train(make(), tmp_path, stop=stop, resume=tmp_path)
        synk.close()
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


@pytest.mark.slow
def test_streams_are_dealt_anew_on_other_numbers_of_ranks(ranks, tmp_path):
    ranks(2)
    train(make(noise=True), tmp_path, stop=3)
    synk.close()
    ranks(3)
    case = make(noise=True)
    train(case, tmp_path, resume=tmp_path, epochs=1)
    states = [str(value) for (_, name), value in values(case).items() if name == "state"]
    assert len(set(states)) == 3


@pytest.mark.slow
def test_an_interrupted_training_is_saved_and_goes_on(ranks, tmp_path):
    ranks(2)
    expected = train(make(noise=True))
    case, options = make(noise=True), {"epochs": 4, "batch_size": 10, "seed": 7, "progress": False}

    class Presses(Callback):
        def on_step_end(self, training):
            if training.history.steps == 8:
                signal.raise_signal(signal.SIGINT)

    callbacks = [Checkpoints(tmp_path), Presses()]
    history = fit(case.step, case.data, callbacks=callbacks, **options)
    assert history.interrupted
    synk.close()
    ranks(2)
    found, state, _ = train(make(noise=True), tmp_path, resume=tmp_path)
    assert found[1:] == expected[0][1:]
    assert state == expected[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:restart. no commit holds:synk.SynkWarning")
def test_the_script_itself_goes_on_after_a_restart(ranks, tmp_path):
    ranks(2)
    expected = train(make(noise=True))
    synk.close()
    ranks(2)
    case = make(noise=True)

    class KillsOnce(StopsAt):
        def on_step_end(self, training):
            super().on_step_end(training)
            if training.history.steps == 12 and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(synk.pids()[1], signal.SIGKILL)

    def go_on():
        callbacks = [Checkpoints(tmp_path, every=4), KillsOnce(), StopsAt()]
        history = fit(
            case.step,
            case.data,
            epochs=4,
            batch_size=10,
            seed=7,
            validation=case.validation,
            callbacks=callbacks,
            resume=tmp_path,
            progress=False,
        )
        return numbers(history), values(case)

    with pytest.raises(synk.WorkerDied):
        go_on()
    assert latest(tmp_path).name == "step-000000010.ckpt"
    synk.restart()
    assert go_on() == expected[:2]


def test_an_older_checkpoint_still_loads_but_holds_no_training(ranks, tmp_path):
    ranks(2)
    path, case = tmp_path / "old.ckpt", make(noise=True)
    path.write_bytes(zlib.decompress(base64.b85decode(OLD)))
    state = next(variable for variable in case.step.state if variable.name == "state")
    assert checkpoint.load(path, [case.w, state]) == {"epoch": 3}
    assert synk.gather(case.w).tolist() == [[0, 1, 2, 3]] * 2
    assert synk.get_value(0, state).random() == np.random.default_rng(5).random()
    with pytest.raises(ValueError, match="holds no training; load it by checkpoint.load"):
        train(case, resume=path)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint .*no.ckpt"):
        train(case, resume=tmp_path / "no.ckpt")


# --- on one rank -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_that_has_ended_is_not_done_again(case, tmp_path):
    expected = train(anew(case), tmp_path)
    assert train(anew(case), tmp_path, resume=tmp_path) == expected
    longer, *_ = train(anew(case), tmp_path, resume=tmp_path, epochs=6)
    assert longer[:4] == expected[0]
    assert len(longer) == 6


def test_a_model_is_loaded_without_what_trained_it(case, tmp_path):
    train(case, tmp_path, epochs=1)
    trained = case.w.get_value().tolist()
    w = pytensor.shared(np.zeros(4), name="w")
    with pytest.raises(checkpoint.CheckpointNames, match=r"has \['t', 'w_mean', 'w_squares'\]; .*strict="):
        checkpoint.load(latest(tmp_path), [w])
    checkpoint.load(latest(tmp_path), [w], strict=False)
    assert synk.gather(w, nd_up=1).tolist() == [trained]
    with pytest.raises(checkpoint.CheckpointNames, match=r"lacks \['b'\] and also has \[\]"):
        checkpoint.load(latest(tmp_path), {"b": w}, strict=False)


def test_parameters_alone_are_loaded_as_from_any_checkpoint(case, tmp_path):
    _, expected, _ = train(case, tmp_path, stop=3)
    assert values(anew(case)) != expected
    assert set(checkpoint.load(latest(tmp_path), case.step)) == {"fit"}
    assert values(case) == expected


def test_saves_take_no_more_memory_than_one_copy(case, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(store, "write", lambda path, copied, state: written.append(dict(copied)))
    train(case, tmp_path)
    arrays = [name for name, value in written[0].items() if isinstance(value, np.ndarray)]
    assert len(arrays) == 4
    assert all(one[name] is written[0][name] for one in written for name in arrays)
    assert written[-1]["w"].tolist() == case.w.get_value().tolist()


@pytest.fixture(scope="module")
def descending(module_ranks):
    return make(rule=updates.sgd, learning_rate=0.5)


def test_newest_and_best_are_kept(descending, tmp_path):
    case, steps = anew(descending), 5  # in an epoch
    found, *_ = train(case, tmp_path, keep=2, best="val_loss", epochs=6)
    losses = [epoch["val_loss"] for epoch in found]
    where = steps * (1 + int(np.argmin(losses)))
    assert where < 25, "the best is none of the newest"
    assert list(checkpoints_in(tmp_path)) == [where, 25, 30]
    assert best(tmp_path).name == f"step-{where:09d}.ckpt"
    assert latest(tmp_path).name == "step-000000030.ckpt"
    checkpoint.load(best(tmp_path), case.step)
    assert float(case.evaluate(*case.validation[1])[0]) == min(losses)
    train(case, tmp_path, keep=2, best="val_loss", epochs=7, resume=tmp_path)
    assert list(checkpoints_in(tmp_path)) == [where, 30, 35]


def test_only_the_best_is_kept_with_keep_0(descending, tmp_path):
    case = anew(descending)
    found, *_ = train(case, tmp_path, keep=0, best="val_loss", epochs=6)
    losses = [epoch["val_loss"] for epoch in found]
    where = 5 * (1 + int(np.argmin(losses)))
    assert where < 30, "the best is not the last"
    assert list(checkpoints_in(tmp_path)) == [where]
    checkpoint.load(best(tmp_path), case.step)
    assert float(case.evaluate(*case.validation[1])[0]) == min(losses)
    again, *_ = train(
        anew(case),
        tmp_path,
        keep=0,
        best="val_loss",
        epochs=6,
        resume=tmp_path,
    )
    assert again == found
    assert list(checkpoints_in(tmp_path)) == [where]


def test_with_keep_0_what_is_not_judged_yet_is_kept(case, tmp_path):
    train(case, tmp_path, keep=0, best="val_loss", every=2, stop=3)
    assert list(checkpoints_in(tmp_path)) == [3]


def test_larger_may_be_better(case, tmp_path):
    found, *_ = train(case, tmp_path, keep=9, best="val_loss", mode="max")
    losses = [epoch["val_loss"] for epoch in found]
    assert best(tmp_path).name == f"step-{5 * (1 + int(np.argmax(losses))):09d}.ckpt"


def test_checkpoints_come_every_so_many_steps_and_where_it_stops(case, tmp_path):
    train(case, tmp_path, keep=99, every=2, stop=9)
    assert list(checkpoints_in(tmp_path)) == [2, 4, 5, 6, 8, 9]
    assert best(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None


@pytest.mark.filterwarnings("ignore:.*is passed over:synk.SynkWarning")
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_refused_by_itself(case, tmp_path):
    expected = train(anew(case))
    train(anew(case), tmp_path, every=2, stop=9)
    newest = latest(tmp_path)
    content = bytearray(newest.read_bytes())
    for at in (3, 60, len(content) // 2, -50, -1):
        content[at] ^= 4
        newest.write_bytes(content)
        with pytest.warns(synk.SynkWarning, match=r"step-000000009.ckpt is passed over"):
            assert latest(tmp_path).name == "step-000000008.ckpt"
        with pytest.raises(checkpoint.CheckpointCorrupt):
            train(anew(case), resume=newest)
        content[at] ^= 4
        newest.write_bytes(content)
        assert latest(tmp_path) == newest
    newest.write_bytes(content[:-1])
    assert train(anew(case), tmp_path, resume=tmp_path) == expected


def test_another_model_is_refused_by_name(case, tmp_path):
    train(anew(case), tmp_path, epochs=1)
    other = make(rule=updates.momentum)
    before = values(other)
    with pytest.raises(checkpoint.CheckpointNames, match=r"lacks \['w_velocity'\] and also has \['t', 'w_"):
        train(other, resume=tmp_path)
    assert values(other) == before


def test_a_changed_graph_is_told(case, tmp_path):
    train(case, tmp_path, epochs=1)
    with pytest.warns(synk.SynkWarning, match="the graph is not the one that"):
        train(make(learning_rate=0.01), resume=tmp_path)


def test_another_order_of_rows_is_refused_in_the_middle_of_an_epoch_only(case, tmp_path):
    case, options = case, {"epochs": 2, "batch_size": 9, "progress": False}
    train(case, tmp_path, stop=7)
    with pytest.raises(ValueError, match="in the middle of an epoch|of the middle of an epoch.*'seed': 7"):
        fit(case.step, case.data, resume=tmp_path, **options)
    train(case, tmp_path, resume=tmp_path, epochs=2)
    history = fit(case.step, case.data, resume=tmp_path, **{**options, "epochs": 3})
    assert len(history) == 3


def test_a_folder_of_another_training_is_refused(case, tmp_path):
    train(anew(case), tmp_path, epochs=1)
    with pytest.raises(ValueError, match=r"step-000000005.ckpt is of a later step than this training's 0"):
        train(anew(case), tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"best": "val_los"}, ValueError, r"best='val_los' names no metric; there are \['loss', 'val_loss'"),
        ({"keep": 0}, ValueError, "keep=0 is less than 1"),
        ({"keep": 2.5}, TypeError, "keep=2.5 is not an integer"),
        ({"every": -2}, ValueError, "every=-2 is less than 1"),
        ({"best": "loss", "mode": "least"}, ValueError, "mode='least' is neither"),
        ({"folder": "/proc/nothing"}, OSError, "/proc/nothing"),
        ({"folder": os.devnull}, FileExistsError, os.devnull),
    ],
)
def test_wrong_arguments_are_told_before_the_first_step(case, tmp_path, options, error, message):
    before = values(case)
    with pytest.raises(error, match=message):
        train(case, **{"folder": tmp_path, **options})
    assert values(case) == before


# --- in a thread -----------------------------------------------------------------------------------------


def test_what_the_thread_raises_is_raised_by_fit(case, tmp_path, monkeypatch):
    def write(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(store, "write", write)
    with pytest.raises(OSError, match="the disk is full"):
        train(case, tmp_path, epochs=1)


def test_training_goes_on_while_the_copy_is_written_and_the_next_save_waits(case, tmp_path, monkeypatch):
    write, at_step_5, written = store.write, threading.Event(), []

    class Steps(Callback):
        def on_step_end(self, training):
            if training.history.steps == 5:
                at_step_5.set()

    def write_late(path, copied, state):
        assert at_step_5.wait(60)
        write(path, copied, state)
        written.append(path.name)

    monkeypatch.setattr(store, "write", write_late)
    callbacks = [Checkpoints(tmp_path, every=3), Steps()]
    fit(case.step, case.data, epochs=2, batch_size=10, callbacks=callbacks, progress=False)
    assert written == [f"step-{step:09d}.ckpt" for step in (3, 5, 6, 9, 10)]
    kept = checkpoint.read_values(tmp_path / "step-000000006.ckpt")["fit"]
    assert (kept["steps"], kept["batch"], kept["epoch"]) == (6, 1, 1)


def test_a_write_that_fails_is_told_and_what_comes_after_it_is_written(case, tmp_path, monkeypatch):
    write, tried = store.write, []

    def fail_once(path, *content):
        tried.append(path.name)
        if len(tried) == 2:
            raise OSError("the disk was full")
        return write(path, *content)

    monkeypatch.setattr(store, "write", fail_once)
    with pytest.raises(OSError, match="was full"):
        train(case, tmp_path, keep=1)
    assert tried == ["step-000000005.ckpt", "step-000000010.ckpt", "step-000000015.ckpt"]
    assert list(checkpoints_in(tmp_path)) == [15]


def test_the_one_before_goes_only_when_the_next_one_is_there(case, tmp_path, monkeypatch):
    write, seen = store.write, []

    def look(path, *content):
        seen.append(list(checkpoints_in(tmp_path)))
        return write(path, *content)

    monkeypatch.setattr(store, "write", look)
    train(case, tmp_path, keep=1)
    assert seen == [[], [5], [10], [15]]
    assert list(checkpoints_in(tmp_path)) == [20]


@pytest.mark.parametrize("keep", [3, np.uint8(3)], ids=["int", "uint8"])
def test_none_goes_while_there_are_no_more_than_are_kept(case, tmp_path, keep):
    train(case, tmp_path, keep=keep, epochs=2)
    assert list(checkpoints_in(tmp_path)) == [5, 10]


@pytest.mark.parametrize("every", [None, 1], ids=["after epochs", "after steps"])
def test_parameters_that_became_nan_are_not_saved(case, tmp_path, every):
    class Breaks(Callback):
        def on_step_end(self, training):
            if training.history.steps == 10:  # the last one, whose loss is finite yet
                synk.broadcast(case.w, np.full(4, np.inf))

    with pytest.warns(synk.SynkWarning, match=r"was not written: NaN or infinities have come into \['w'\]"):
        fit(
            case.step,
            case.data,
            epochs=2,
            batch_size=10,
            callbacks=[Breaks(), Checkpoints(tmp_path, keep=1, every=every)],
            progress=False,
        )
    assert list(checkpoints_in(tmp_path)) == [9 if every else 5]


def test_an_infinity_that_was_there_from_the_start_is_saved(case, tmp_path, monkeypatch):
    least = pytensor.shared(np.inf, name="least")
    monkeypatch.setattr(case.step, "state", (*case.step.state, least))
    train(case, tmp_path)
    assert list(checkpoints_in(tmp_path)) == [10, 15, 20]


def test_checkpoints_of_another_version_are_no_reason_to_begin_anew(case, tmp_path):
    train(anew(case), tmp_path, epochs=2)
    for path in checkpoints_in(tmp_path).values():
        data = bytearray(path.read_bytes())
        assert data[VERSION_AT] == file_format.VERSION
        data[VERSION_AT] += 1
        path.write_bytes(data)
    for folder in (tmp_path, None):
        with pytest.raises(checkpoint.CheckpointVersion):
            train(anew(case), tmp_path, resume=folder)
    assert list(checkpoints_in(tmp_path)) == [5, 10]


def test_a_folder_without_a_whole_checkpoint_is_refused(case, tmp_path):
    train(anew(case), tmp_path, epochs=1)
    path = latest(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with (
        pytest.warns(synk.SynkWarning, match="passed over"),
        pytest.raises(checkpoint.CheckpointCorrupt, match="SHA-256"),
    ):
        train(anew(case), tmp_path, resume=tmp_path)


def test_an_old_checkpoint_that_cannot_be_removed_is_told(case, tmp_path, monkeypatch):
    unlink = Path.unlink

    def refuse(path, **options):
        if path.name == "step-000000005.ckpt":
            raise PermissionError("it is another user's")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.warns(synk.SynkWarning, match="step-000000005.ckpt is older than .* but stays: it is"):
        train(case, tmp_path, keep=1)
    assert list(checkpoints_in(tmp_path)) == [5, 20]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: 5,
        lambda state: {**state, "steps": None, "history": 3},
        lambda state: {key: value for key, value in state.items() if key != "sums"},
        lambda state: {**state, "callbacks": 3},
    ],
)
def test_a_state_that_is_none_is_told(case, tmp_path, change):
    train(case, tmp_path, epochs=1)
    path = latest(tmp_path)
    state = checkpoint.read_values(path)["fit"]
    store.write(path, copies(case.step), {"fit": change(state)})
    with pytest.raises((ValueError, checkpoint.CheckpointCorrupt), match="no training|no state of a"):
        train(case, resume=path)
    assert best(tmp_path) is None


def test_a_save_is_written_without_a_thread_where_the_system_refuses_one(case, tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    train(case, tmp_path)
    assert list(checkpoints_in(tmp_path)) == [10, 15, 20]


def test_a_second_folder_may_be_ahead_of_the_one_that_a_training_goes_on_from(case, tmp_path):
    often, ahead = tmp_path / "often", tmp_path / "ahead"
    train(anew(case), ahead, epochs=2)
    train(anew(case), often, epochs=1)
    train(anew(case), ahead, resume=often)
    assert list(checkpoints_in(ahead)) == [10, 15, 20]
    with pytest.raises(ValueError, match="later step"):  # in its own folder it would mix two trainings
        train(anew(case), ahead, resume=ahead / "step-000000010.ckpt")


def test_nothing_is_saved_of_a_training_that_an_error_ends(case, tmp_path):
    class Raises(Callback):
        def on_step_end(self, training):
            if training.history.steps == 8:
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fit(
            case.step,
            case.data,
            epochs=2,
            batch_size=10,
            callbacks=[Checkpoints(tmp_path), Raises()],
            progress=False,
        )
    assert list(checkpoints_in(tmp_path)) == [5]
