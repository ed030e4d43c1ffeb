"""A training whose workers die or hang goes on in the same process, as if nothing had happened."""

import json
import os
import signal

import numpy as np
import pytensor
import pytest

import synk
from support.cases.fitting import anew, make
from support.cases.recovered import EPOCHS, STEPS, Kills, fitted
from support.slow import slow
from synk.extensions import updates
from synk.extensions.fit import (
    Callback,
    Checkpoints,
    CSVLog,
    EarlyStopping,
    History,
    JSONLog,
    LinearScaling,
    TensorBoard,
    latest,
)
from synk.extensions.fit import recovery as recovery_module
from synk.extensions.fit.recovery import Commits
from synk.run.launch import start_workers
from synk.run.session.function_table import FunctionTable

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*the training goes on after step:synk.SynkWarning"),
]


def disturbed(ranks, *callbacks, expected_from=(), compiled=True, timeout=20):
    """Compare a training with such callbacks with one that has only the second ones; return its history."""
    ranks(2, timeout=timeout)
    case = make(noise=True)
    expected, _ = fitted(case, *expected_from)
    if compiled:
        anew(case)
    else:
        synk.close()
        ranks(2, timeout=timeout)
        case = make(noise=True)
    found, history = fitted(case, *callbacks, recover=3)
    assert found == expected
    return history


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        slow("on_epoch_begin", 0),  # in the first step
        ("on_step_end", 8),  # in a step
        slow("on_step_end", 6),  # in validation
        slow("on_epoch_end", 6),  # where all is saved
    ],
)
def test_a_training_goes_on_with_the_same_bits_wherever_a_worker_dies(ranks, tmp_path, method, steps):
    callbacks = [Kills(method, steps), Checkpoints(tmp_path, every=5), CSVLog(tmp_path / "log.csv")]
    history = disturbed(ranks, *callbacks, expected_from=[Kills()])
    [recovery] = history.recoveries
    assert recovery["step"] == steps
    assert recovery["from_step"] <= steps
    assert recovery["ranks"] == 2
    assert recovery["cause"].startswith("rank 1 (pid ")
    assert "died of signal SIGKILL" in recovery["cause"]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + EPOCHS
    assert latest(tmp_path).name == "step-000000018.ckpt"


@pytest.mark.slow
def test_a_training_goes_on_with_the_same_bits_if_a_worker_dies_when_the_first_step_has_compiled(
    ranks, monkeypatch
):
    """Rank 0 has drawn its random numbers then, and no call had told the ranks of the variables before."""
    compile_all, killed = FunctionTable.compile, []

    def compile_and_kill(functions, programs):
        compile_all(functions, programs)
        if armed and not killed:
            killed.append(synk.pids()[1])
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(FunctionTable, "compile", compile_and_kill)
    armed = []

    class Arms(Callback):
        def on_epoch_begin(self, training):
            armed.append(training)

    history = disturbed(ranks, Arms(), compiled=False)
    assert len(history.recoveries) == 1
    assert history.recoveries[0]["step"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("share", [slow(0.01), 1e9])  # now and then, or after every step
def test_a_training_that_has_stopped_stops_there_again_if_a_worker_dies_before_it_is_saved(
    ranks, tmp_path, monkeypatch, share
):
    monkeypatch.setattr(recovery_module, "SHARE", share)

    class Stops(Callback):
        def on_step_end(self, training):
            if training.history.steps == 9:
                training.stop("test")

    kills = Kills("on_train_end", 9)
    history = disturbed(ranks, Stops(), Checkpoints(tmp_path), kills, expected_from=[Stops(), Kills()])
    assert len(history.recoveries) == 1
    assert latest(tmp_path).name == "step-000000009.ckpt"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*stopped by a signal:synk.SynkWarning")
def test_a_hung_worker_is_replaced_at_the_deadline(ranks):
    kills = Kills("on_step_end", 8, signal.SIGSTOP)
    history = disturbed(ranks, kills, expected_from=[Kills()], timeout=5)
    assert "did not end within 5 s" in history.recoveries[0]["cause"]


@pytest.mark.slow
def test_a_death_that_the_thread_of_the_batches_finds_is_recovered(ranks):
    ranks(2)
    case, killed = make(noise=True), []

    def batch(numbers):
        if len(killed) < 2:
            killed.append(synk.pids()[1])
            os.kill(killed[-1], signal.SIGKILL)
        case.evaluate(*case.validation[1])
        return [array[numbers] for array in case.data]

    found, history = fitted(case, recover=5, data=batch, n_rows=len(case.data[0]))
    synk.close()
    ranks(2)
    assert (found, len(set(killed))) == (fitted(make(noise=True))[0], 2)
    assert 1 <= len(history.recoveries) <= 2


@pytest.mark.slow
def test_logs_events_and_reasons_to_stop_are_those_of_an_undisturbed_training(ranks, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    class Worse(Callback):
        def on_epoch_end(self, training):
            training.metrics["val_loss"] = 1.0 + training.epoch

    def run(name, *callbacks):
        ranks(2)
        (tmp_path / name).mkdir()
        log, board = JSONLog(tmp_path / f"{name}.jsonl", every=2), TensorBoard(tmp_path / name)
        found, history = fitted(
            make(noise=True), Worse(), *callbacks, log, board, EarlyStopping(patience=2), epochs=9, recover=9
        )
        synk.close()
        lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for line in lines:
            line.pop("seconds", None)
            line.pop("rows_per_second", None)
        events = accumulators.EventAccumulator(str(tmp_path / name))
        events.Reload()
        points = [(tag, [(e.step, e.value) for e in events.Scalars(tag)]) for tag in events.Tags()["scalars"]]
        return (found, lines, sorted(points)), history

    expected, _ = run("whole", Kills())
    found, history = run("part", Kills("on_step_end", 9), Kills("on_epoch_end", 12))
    assert found[0] == expected[0]
    assert found[1] == expected[1]
    assert found[2] == expected[2]
    assert len(history.recoveries) == 2
    assert history.stopped == "val_loss was no better than 1 for too long"


@pytest.mark.slow
def test_logs_are_whole_if_the_script_is_killed_after_a_recovery(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(recovery_module, "SHARE", 1e-9)  # so that checkpoints are newer than commits
    path, saved = tmp_path / "log.jsonl", tmp_path / "saved"

    class Killed(Callback):
        def on_step_end(self, training):
            if training.history.recoveries and training.history.steps == 3:
                raise RuntimeError("for a signal")

    ranks(2)
    log = JSONLog(path, every=1)
    with pytest.raises(RuntimeError, match="for a signal"):
        fitted(
            make(rule=updates.sgd),
            log,
            Kills("on_step_end", 9),
            Killed(),
            Checkpoints(saved, every=4),
            recover=1,
        )
    fitted(make(rule=updates.sgd), JSONLog(path, every=1), Checkpoints(saved), resume=saved)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == list(range(1, 1 + EPOCHS * STEPS))
    assert [line["epoch"] for line in lines if "epoch" in line] == list(range(EPOCHS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*was not written:synk.SynkWarning")
def test_parameters_that_became_nan_are_not_saved_after_a_recovery(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(recovery_module, "SHARE", 1e9)  # it commits after every step
    case = {}

    class Breaks(Callback):
        def on_step_end(self, training):
            if training.history.steps == 7:
                synk.broadcast(case["made"].w, np.full(4, np.nan))

    ranks(2)
    case["made"] = make(rule=updates.sgd)
    _, history = fitted(case["made"], Breaks(), Kills("on_step_end", 11), Checkpoints(tmp_path), recover=1)
    assert history.recoveries[0]["from_step"] >= 8  # when all is NaN
    assert latest(tmp_path).name == "step-000000006.ckpt"


@pytest.mark.slow
def test_an_error_before_the_first_command_leaves_the_run_usable(ranks):
    class Refuses(Callback):
        def on_train_begin(self, training):
            raise synk.SynkStateError("mine")

    ranks(2)
    case = make(rule=updates.sgd)
    with pytest.raises(synk.SynkStateError, match="mine"):
        fitted(case, Refuses(), recover=1)
    fitted(case)


def refuse_more_than(n_ranks, monkeypatch):
    """Have the system refuse processes, as it does where a user has too many."""
    fork_child = start_workers.fork_child

    def fork(body):
        if body.args[0].rank >= n_ranks:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork_child(body)

    monkeypatch.setattr(start_workers, "fork_child", fork)


@pytest.mark.parametrize("left", [slow(2), 1])
@pytest.mark.slow
def test_a_training_goes_on_with_as_many_ranks_as_can_be_had(ranks, tmp_path, monkeypatch, left):
    def case():
        return make(rule=updates.momentum, learning_rate=0.02)

    ranks(1)
    (expected, *_), _ = fitted(case())
    synk.close()
    ranks(3)

    class Refuses(Kills):
        def strike(self, training):
            super().strike(training)
            refuse_more_than(left, monkeypatch)

    (found, *_), history = fitted(case(), Refuses("on_step_end", 8), Checkpoints(tmp_path), recover=1)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    assert history.recoveries[0]["ranks"] == synk.n_ranks() == left
    again, _ = fitted(case(), resume=tmp_path, epochs=EPOCHS + 1)
    assert again[0][:EPOCHS] == found


@pytest.mark.slow
def test_a_rate_follows_the_ranks_that_are_left(ranks, monkeypatch):
    ranks(3)
    rate = pytensor.shared(9.0, name="rate")
    case = make(rule=updates.sgd, learning_rate=rate)
    refuse = Kills("on_step_end", 8)
    refuse_more_than(2, monkeypatch)
    fitted(case, refuse, LinearScaling(rate, 0.02), recover=1)
    assert [float(synk.get_value(rank, rate)) for rank in range(2)] == pytest.approx([0.04] * 2)


@pytest.mark.slow
def test_what_each_rank_has_for_itself_keeps_their_number(ranks, monkeypatch):
    ranks(2)
    case, own = make(rule=updates.sgd), pytensor.shared(np.zeros((1, 2)), name="own")
    synk.set_value(1, own, np.ones((1, 2)))
    refuse_more_than(1, monkeypatch)
    with pytest.raises(synk.SynkStateError, match="each rank has its own 'own'") as caught:
        fitted(case, Kills("on_step_end", 8), recover=3)
    assert isinstance(caught.value.__cause__, BlockingIOError)


@pytest.mark.slow
def test_a_worker_that_dies_each_time_or_in_recoveries_ends_the_training_after_so_many_tries(ranks):
    ranks(2)
    case = make(rule=updates.sgd)
    with pytest.raises(synk.WorkerDied, match="rank 1") as caught, pytest.warns(synk.SynkWarning) as warned:
        fitted(case, Kills("on_step_end", 8, times=99), recover=2)
    told = [str(one.message) for one in warned if "the training goes on" in str(one.message)]
    assert len(told) == 2
    assert told[1].startswith("after step 8, rank 1 (pid ")
    assert told[1].endswith("on 2 ranks (recovery 2 of at most 2)")
    assert not isinstance(caught.value.__context__, synk.SynkError)  # each is told by itself
    synk.restart()

    class KillsInRecoveries(Kills):
        def load_state(self, state):
            os.kill(synk.pids()[1], signal.SIGKILL)
            synk.broadcast(case.w)

    with pytest.raises(synk.WorkerDied):
        fitted(anew(case), KillsInRecoveries("on_step_end", 8), recover=2)
    synk.restart()


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        slow("a callback", RuntimeError),
        slow("the data", ZeroDivisionError),
        ("a rank", synk.RemoteError),
        slow("saving", ZeroDivisionError),
        slow("a callback's own WorkerDied", synk.WorkerDied),
    ],
)
def test_errors_of_the_script_are_raised(ranks, tmp_path, monkeypatch, where, kind):
    ranks(2)
    case, begun = make(check_finite=True), []
    data, options = case.data, {}

    class Raises(Callback):
        def on_train_begin(self, training):
            begun.append(training)

        def on_step_end(self, training):
            if training.history.steps == 3 and where == "a callback":
                raise RuntimeError("mine")
            if training.history.steps == 3 and where.endswith("WorkerDied"):
                raise synk.WorkerDied(1, 2, "mine", "idle", "nothing")

    if where == "a rank":
        data[0][40] = np.nan
    elif where == "the data":
        options = {"n_rows": 47, "data": lambda numbers: 1 / 0}
    elif where == "saving":
        monkeypatch.setattr("synk.extensions.checkpoint.store.write", lambda *_: 1 / 0)
    with pytest.raises(kind):
        fitted(case, Checkpoints(tmp_path), Raises(), recover=3, **{"data": data, **options})
    assert len(begun) == 1
    assert not begun[0].history.recoveries


@pytest.mark.slow
def test_a_commit_of_a_callback_is_not_taken_for_the_trainings(ranks, monkeypatch):
    ranks(2)

    class CommitsToo(Kills):
        def strike(self, training):
            if training.history.steps == 8:
                synk.commit({"mine": 1})
            super().strike(training)

    monkeypatch.setattr(recovery_module, "SHARE", 1e-9)  # it does not commit again
    with pytest.raises(synk.WorkerDied) as caught:
        fitted(make(rule=updates.sgd), CommitsToo("on_step_end", 9), recover=3)
    assert caught.value.__notes__ == [
        "the training cannot go on: a callback has called synk.commit() meanwhile"
    ]


def test_a_run_that_was_broken_before_is_not_restarted(ranks):
    ranks(2)
    case, pids = make(rule=updates.sgd), synk.pids()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(synk.WorkerDied):
        fitted(case, recover=3)
    assert synk.pids() == pids


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"recover": -1}, ValueError, "recover=-1 is less than 0; pass how often"),
        ({"recover": True}, TypeError, "recover=True is not an integer"),
        ({"recover": "3"}, TypeError, "recover='3' is not an integer"),
        (
            {"recover": 1, "epochs": 1, "batch_size": None, "data": iter([])},
            ValueError,
            "yields each batch",
        ),
    ],
)
def test_wrong_arguments_are_told(ranks, options, error, message):
    ranks(1)
    with pytest.raises(error, match=message):
        fitted(make(rule=updates.sgd), **options)


def test_commits_take_a_hundredth_of_the_time(monkeypatch):
    clock, committed = [0.0], []

    class Training:
        history = History()

        def state(self):
            return {}

    def commit(values):
        committed.append(clock[0])
        clock[0] += 0.5

    monkeypatch.setattr(recovery_module, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(synk, "commit", commit)
    commits = Commits(1)
    for _ in range(2000):
        clock[0] += 0.1
        commits.on_step_end(Training())
    assert np.diff(committed) == pytest.approx(50.5, abs=0.2)
