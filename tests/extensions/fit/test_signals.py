"""Signals end a training after its step: it is saved, and goes on when the script is started again."""

import os
import random
import signal
import threading
import time

import pytest

import synk
from support.cases.fitting import anew, command, ended, make, result_in, start
from support.slow import slow
from synk.extensions.fit import Callback, Checkpoints, fit, latest
from synk.extensions.fit.folder import checkpoints_in

N_RANKS = 1
ENDING = (signal.SIGTERM, signal.SIGUSR1)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Steps(Callback):
    """Makes steps last, and touches a file at the first."""

    def __init__(self, path):
        self.path = path

    def on_step_end(self, training):
        self.path.touch()
        time.sleep(0.005)


def started(folder, *callbacks, **options):
    """Start the command in a child, which leads a group of processes; return its pid when it trains.

    Or when it has come to its end, with nothing left to train.
    """
    beat = folder / "beat"
    beat.unlink(missing_ok=True)
    child = start(command, folder, 8, [Steps(beat), *callbacks], stop_on=ENDING, **options)
    while not (beat.exists() or result_in(folder)):
        time.sleep(0.01)
    return child


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert ended(start(command, folder, 8)) == 0
    return result_in(folder)


@pytest.mark.slow
def test_a_job_that_is_told_to_end_exits_with_0_and_goes_on_when_it_is_started_again(tmp_path, undisturbed):
    """All processes of the job get the signal, as schedulers send it."""
    chance, told, steps = random.Random(1), 0, 0
    while not result_in(tmp_path):
        child = started(tmp_path)
        time.sleep(chance.uniform(0, 0.1))
        if told < 4:
            for _ in range(2):  # by the scheduler, and by a script that hands it on
                os.killpg(child, ENDING[told % 2])
            told += 1
        assert ended(child) == 0 or result_in(tmp_path)  # one that comes after the end is the script's
        assert max(checkpoints_in(tmp_path)) > steps
        steps = max(checkpoints_in(tmp_path))
    assert told > 1
    assert result_in(tmp_path) == undisturbed


@pytest.mark.soak
def test_a_job_that_is_told_to_end_fifty_times_ends_with_the_same_bits(tmp_path, undisturbed):
    chance, told, folders = random.Random(2), 0, 0
    while told < 50:
        folder = tmp_path / str(folders)
        folder.mkdir()
        folders += 1
        while not result_in(folder):
            child = started(folder)
            time.sleep(chance.uniform(0, 0.1))
            os.killpg(child, chance.choice(ENDING))
            told += 1
            # One that comes when the training has ended is the script's.
            assert ended(child) == 0 or result_in(folder)
        assert result_in(folder) == undisturbed
    print(f"{told} signals, {folders} trainings")


class Hangs(Callback):
    """Stops the worker after some steps, or holds the main thread so that no handler of signals runs."""

    def __init__(self, native):
        self.native = native

    def on_step_end(self, training):
        if training.history.steps == 3:
            if self.native:
                signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
                time.sleep(60)
            os.kill(synk.pids()[1], signal.SIGSTOP)


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, slow(True)])
def test_a_step_that_does_not_end_in_the_grace_is_given_up_and_the_last_checkpoint_stays(tmp_path, native):
    child = started(tmp_path, Hangs(native), grace=2)
    while max(checkpoints_in(tmp_path), default=0) < 2:
        time.sleep(0.01)
    time.sleep(0.5)
    began = time.monotonic()
    os.killpg(child, signal.SIGTERM)
    assert ended(child) == 0
    assert time.monotonic() - began < 6
    assert latest(tmp_path).name == "step-000000002.ckpt"
    assert result_in(tmp_path) is None


class Signals(Callback):
    """Sends signals to this process in a step."""

    def __init__(self, *numbers, at=7):
        self.numbers, self.at = numbers, at

    def on_step_end(self, training):
        if training.history.steps == self.at:
            for number in self.numbers:
                signal.raise_signal(number)


def trained(case, *callbacks, stop_on=ENDING, **options):
    return fit(
        case.step,
        case.data,
        epochs=3,
        batch_size=10,
        callbacks=callbacks,
        stop_on=stop_on,
        progress=False,
        **options,
    )


@pytest.mark.slow
def test_the_scripts_handlers_run_once_all_is_saved_and_are_restored(ranks, tmp_path):
    ranks(2)
    case = make()
    seen = []

    def handler(number, frame):
        seen.append((number, latest(tmp_path).name))

    before = [signal.signal(signal.SIGUSR1, handler), signal.getsignal(signal.SIGTERM)]
    try:
        with pytest.raises(SystemExit) as caught:
            trained(case, Checkpoints(tmp_path), Signals(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR1))
        assert caught.value.code == 0
        assert seen == [(signal.SIGUSR1, "step-000000007.ckpt")]
        assert signal.getsignal(signal.SIGUSR1) is handler
        assert signal.getsignal(signal.SIGTERM) is before[1]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGUSR1, before[0])
    assert not [thread for thread in threading.enumerate() if thread.name == "synk-grace"]
    trained(anew(case))  # the run goes on


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*the training goes on after step:synk.SynkWarning")
def test_a_training_that_is_to_end_is_saved_even_if_a_worker_dies_then(ranks, tmp_path):
    ranks(2)
    case = make()

    class Kills(Callback):
        last = True

        def on_train_end(self, training):
            if training.history.steps == 7 and not training.history.recoveries:
                os.kill(synk.pids()[1], signal.SIGKILL)

    with pytest.raises(SystemExit):
        trained(case, Checkpoints(tmp_path), Kills(), Signals(signal.SIGTERM), recover=1)
    # After the step of the last commit, from which no other step is done.
    assert 0 < max(checkpoints_in(tmp_path)) <= 7


def test_a_handler_that_raises_does_so_once_all_is_saved(case, tmp_path):

    def handler(number, frame):
        raise SystemExit(9)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SystemExit) as caught:
            trained(case, Checkpoints(tmp_path), Signals(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value.code == 9
    assert latest(tmp_path).name == "step-000000007.ckpt"


def test_an_error_is_not_hidden_by_a_signal(case):

    class Raises(Callback):
        def on_train_end(self, training):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        trained(case, Signals(signal.SIGTERM), Raises())


def test_an_interrupt_returns_the_history_beside_signals_that_end_the_script(case):
    history = trained(case, Signals(signal.SIGINT))
    assert (history.steps, history.stopped, history.interrupted) == (7, "interrupted", True)
    with pytest.raises(KeyboardInterrupt):
        trained(case, Signals(signal.SIGTERM, signal.SIGINT, signal.SIGINT))


def test_processes_that_the_script_forks_end_by_signals_as_they_would(case):
    statuses = []

    class Forks(Callback):
        def on_step_end(self, training):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(1)
            os.kill(child, signal.SIGTERM)
            statuses.append(ended(child))
            training.stop("test")

    trained(case, Forks())
    assert statuses == [-signal.SIGTERM]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stop_on": signal.SIGTERM}, TypeError, "is no list of signals; pass .signal.SIGTERM, "),
        ({"stop_on": "SIGTERM"}, TypeError, "stop_on='SIGTERM' is no list"),
        (
            {"stop_on": ["SIGTERM"]},
            ValueError,
            "stop_on='SIGTERM' is no signal that workers ignore; choose",
        ),
        ({"stop_on": [signal.SIGKILL]}, ValueError, "no signal that workers ignore"),
        ({"stop_on": [True]}, ValueError, "stop_on=True is no signal"),
        ({"grace": 0}, ValueError, "grace=0 is no time to wait"),
        ({"grace": "1m"}, TypeError, "grace='1m' is not a number of seconds"),
    ],
)
def test_wrong_arguments_are_told(case, options, error, message):
    with pytest.raises(error, match=message):
        trained(case, **options)


def test_only_the_main_thread_can_be_stopped_by_signals(case):
    caught = []

    def run():
        try:
            trained(case)
        except ValueError as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "needs the main thread" in caught[0]
