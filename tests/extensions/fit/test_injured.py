"""A training whose worker is killed or stopped at random moments ends with the bits of an undisturbed one."""

import os
import random
import signal
import time

import pytest

import synk
from support.cases.fitting import make
from support.cases.recovered import fitted
from synk.extensions.fit import Callback, Checkpoints, JSONLog

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*the training goes on after step:synk.SynkWarning"),
    pytest.mark.filterwarnings("ignore:.*stopped by a signal:synk.SynkWarning"),
]

INJURED_EPOCHS = 12


class Injures(Callback):
    """Kills or stops rank 1 at random moments, so many times; and makes steps last."""

    def __init__(self, times, stops, seed):
        self.left, self.stops, self.chance, self.spared = times, stops, random.Random(seed), 0

    def on_train_begin(self, training):
        signal.signal(signal.SIGALRM, self.strike)
        self.wait()

    def on_epoch_begin(self, training):
        if training.epoch == INJURED_EPOCHS - 1:  # what dies after the last command, the next one finds
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.left, self.spared = 0, self.left

    def wait(self):
        if self.left:
            signal.setitimer(signal.ITIMER_REAL, self.chance.uniform(0.01, 0.8))

    def on_step_end(self, training):
        time.sleep(0.004)

    def strike(self, number, frame):
        self.left -= 1
        number = signal.SIGSTOP if self.chance.random() < self.stops else signal.SIGKILL
        try:
            os.kill(synk.pids()[1], number)
        except ProcessLookupError:  # it has not been replaced yet
            self.left += 1
        self.wait()


def injured(ranks, folder, times, stops, seed):
    before = signal.getsignal(signal.SIGALRM)
    injures = Injures(times, stops, seed)
    try:
        ranks(2, timeout=60)
        expected, _ = fitted(make(noise=True), epochs=INJURED_EPOCHS)
        synk.close()
        ranks(2, timeout=5)
        callbacks = [injures, Checkpoints(folder, every=3), JSONLog(folder / "log")]
        found, history = fitted(make(noise=True), *callbacks, epochs=INJURED_EPOCHS, recover=1000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert found == expected
    assert len((folder / "log").read_text().splitlines()) == INJURED_EPOCHS
    return times - injures.left - injures.spared, history


@pytest.mark.slow
def test_a_training_that_is_injured_at_random_moments_ends_with_the_same_bits(ranks, tmp_path):
    injuries, history = injured(ranks, tmp_path, times=5, stops=0.2, seed=1)
    assert injuries > 0
    assert history.recoveries


@pytest.mark.soak
def test_a_hundred_injuries_change_nothing(ranks, tmp_path):
    injuries, recoveries, seed = 0, 0, 0
    while injuries < 100:
        (tmp_path / str(seed)).mkdir()
        done, history = injured(ranks, tmp_path / str(seed), 25, 0.15, seed)
        synk.close()
        injuries, recoveries, seed = injuries + done, recoveries + len(history.recoveries), seed + 1
    print(f"{injuries} injuries, {recoveries} recoveries, {seed} trainings")
    assert recoveries > 50
