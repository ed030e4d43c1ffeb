"""A training that is killed and started again, by the same command, ends as if nothing had happened."""

import io
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

import synk
from support.cases.fitting import command, ended, make, result_in, start
from synk.extensions import checkpoint
from synk.extensions.checkpoint import file_format
from synk.extensions.fit import Callback, Checkpoints, fit, latest
from synk.extensions.fit.folder import checkpoints_in

EPOCHS, SECONDS_A_STEP = 8, 0.004
LONGEST = EPOCHS * 6 * SECONDS_A_STEP  # seconds before a kill

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Dies(Callback):
    """Kills this process, or its worker, after some seconds of training; and makes steps last."""

    def __init__(self, after, who):
        self.after, self.who = after, who

    def on_train_begin(self, training):
        if self.after is not None:
            timer = threading.Timer(self.after, os.kill, (synk.pids()[self.who], signal.SIGKILL))
            timer.daemon = True
            timer.start()

    def on_step_end(self, training):
        time.sleep(SECONDS_A_STEP)


def run(folder, after=None, who=0):
    """Run the command in a child, and kill it or its worker after so many seconds; return its exit status."""
    return ended(start(command, folder, EPOCHS, [Dies(after, who)]))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(folder) == 0
    return result_in(folder)


def kill_and_start_again(folder, undisturbed, seed, kills):
    """Kill a training at random moments, so often at most, until it ends; return how often it was killed."""
    chance = random.Random(seed)
    killed = 0
    while killed < kills and not result_in(folder):
        status = run(folder, chance.uniform(0, LONGEST / 2), chance.choice([0, 0, 1]))
        assert status in (-signal.SIGKILL, 1, 0)  # 1: of a script whose worker has died
        killed += status != 0
    if not result_in(folder):
        assert run(folder) == 0
    assert result_in(folder) == undisturbed
    return killed


@pytest.mark.slow
def test_a_training_that_is_killed_at_random_moments_ends_with_the_same_bits(tmp_path, undisturbed):
    assert kill_and_start_again(tmp_path, undisturbed, seed=1, kills=4) > 0


@pytest.mark.soak
def test_a_hundred_kills_change_nothing(tmp_path, undisturbed):
    killed, seed = 0, 0
    while killed < 100:
        folder = tmp_path / str(seed)
        folder.mkdir()
        killed += kill_and_start_again(folder, undisturbed, seed, kills=8)
        seed += 1


# --- at every byte that is written -----------------------------------------------------------------------


def saved_twice(folder, n_bytes=None):
    """Train two steps, with a checkpoint after each; be killed when so many bytes of the second are there."""
    synk.fork(1)
    write, case = file_format.write, make()

    def write_in_part(file, values):
        if values["fit"]["steps"] < 2 or n_bytes is None:
            return write(file, values)
        whole = io.BytesIO()
        write(whole, values)
        file.write(whole.getvalue()[:n_bytes])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    file_format.write = write_in_part
    try:
        rows = [array[:16] for array in case.data]
        callbacks = [Checkpoints(folder, every=1)]
        fit(case.step, rows, epochs=1, batch_size=8, callbacks=callbacks, progress=False)
    finally:
        file_format.write = write
        synk.close()


def kills_at(folder, places):
    for n_bytes in places:  # also of what is longer by a digit or two, and so never complete
        assert ended(start(saved_twice, folder, n_bytes=n_bytes)) == -signal.SIGKILL
        assert list(checkpoints_in(folder)) == [1]
        assert checkpoint.read_values(latest(folder))["fit"]["steps"] == 1
        for path in Path(folder).iterdir():
            path.unlink()


def places_in(folder):
    """Return how many bytes the second checkpoint has."""
    saved_twice(folder)
    size = latest(folder).stat().st_size
    for path in Path(folder).iterdir():
        path.unlink()
    return size


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path):
    size = places_in(tmp_path)
    kills_at(tmp_path, [0, 1, 15, 16, size // 2, -33, -32, -1])


@pytest.mark.soak
def test_a_kill_at_every_byte_leaves_the_one_before(tmp_path):
    kills_at(tmp_path, range(places_in(tmp_path)))


# --- flipped bits ----------------------------------------------------------------------------------------

VERSION_BYTES = range(8, 12)  # of a file


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.*is passed over:synk.SynkWarning")
def test_a_flipped_bit_in_any_byte_is_refused_by_name_and_the_checkpoint_before_is_there(tmp_path):
    saved_twice(tmp_path)
    before, newest = checkpoints_in(tmp_path).values()
    content = bytearray(newest.read_bytes())
    for at in range(len(content)):
        content[at] ^= 1 << at % 8
        newest.write_bytes(content)
        with pytest.raises((checkpoint.CheckpointCorrupt, checkpoint.CheckpointVersion)):
            checkpoint.read_values(newest)
        if at in VERSION_BYTES:  # of a later synk, perhaps, which is no reason to go back
            with pytest.raises(checkpoint.CheckpointVersion) as caught:
                latest(tmp_path)
            assert newest.name in caught.value.__notes__[0]
        else:
            with pytest.warns(synk.SynkWarning, match=f"{newest.name} is passed over"):
                assert latest(tmp_path) == before
        content[at] ^= 1 << at % 8
    newest.write_bytes(content)
    assert latest(tmp_path) == newest
