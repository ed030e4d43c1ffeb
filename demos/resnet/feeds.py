"""Two ways to feed the ranks: pixels in shared memory, or files that the ranks read themselves.

    synthetic(rows, size, n_classes, seed) -> training Pixels, validation Pixels -> from_memory -> Feed
    folders.find                           -> training Files,  validation Files  -> from_files  -> Feed

A Feed has the graphs from what is scattered to pixels, and the arrays that are scattered.
"""

from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from folders import Files
from images import ReadImages

import synk
from synk.extensions.fit import Callback, Training

VALIDATION_SHARE = 0.2  # as many validation images, for each to train on
GRAIN = 8  # places across and down in the pattern of a class


class Pixels(NamedTuple):
    """Images and their labels."""

    images: np.ndarray  # (rows, 3, size, size), uint8
    labels: np.ndarray  # (rows,), int64


class Feed(NamedTuple):
    """The inputs of a network, as graphs and as arrays."""

    inputs: list[Any]  # scattered: images or their numbers, and labels
    epoch: Any  # int64 scalar that all ranks are given; None where nothing depends on it
    train_pixels: Any  # uint8 (rows, 3, size, size)
    pixels: Any  # the same for validation
    training: tuple[np.ndarray, np.ndarray]  # for the inputs
    validation: tuple[np.ndarray, np.ndarray]


class TellEpoch(Callback):
    """Writes the number of the epoch into a `Data` that all ranks read."""

    def __init__(self, epoch: synk.Data):
        self._epoch = epoch

    def on_epoch_begin(self, training: Training) -> None:
        self._epoch[...] = training.epoch


def from_memory(training: Pixels, validation: Pixels) -> Feed:
    """Scatter pixels."""
    size = training.images.shape[-1]
    pixels, labels = pt.tensor("pixels", shape=(None, 3, size, size), dtype="uint8"), pt.lvector("labels")
    return Feed([pixels, labels], None, pixels, pixels, training, validation)


def from_files(training: Files, validation: Files, size: int, seed: int) -> Feed:
    """Scatter numbers of files."""
    numbers, labels, epoch = pt.lvector("numbers"), pt.lvector("labels"), pt.lscalar("epoch")
    return Feed(
        inputs=[numbers, labels],
        epoch=epoch,
        train_pixels=ReadImages(training.paths, size, seed)(numbers, epoch),
        pixels=ReadImages(validation.paths, size)(numbers),
        training=(np.arange(len(training.paths)), training.labels),
        validation=(np.arange(len(validation.paths)), validation.labels),
    )


def synthetic(rows: int, size: int, n_classes: int, seed: int) -> tuple[Pixels, Pixels]:
    """Draw images that can be learned: each shows a coarse pattern, that of its class, under noise.

    Parameters
    ----------
    rows : int
        Images to train on; there are others for validation, at least one.
    size : int
        Pixels, of each side.
    n_classes : int
    seed : int
    """
    rng = np.random.default_rng(seed)
    patterns = rng.integers(128, size=(n_classes, 3, GRAIN, GRAIN), dtype=np.uint8)
    return tuple(draw(patterns, n, size, rng) for n in (rows, max(1, round(VALIDATION_SHARE * rows))))


def draw(patterns: np.ndarray, rows: int, size: int, rng: np.random.Generator) -> Pixels:
    """Draw images of patterns, (classes, 3, `GRAIN`, `GRAIN`)."""
    labels = rng.integers(len(patterns), size=rows)
    images = rng.integers(128, size=(rows, 3, size, size), dtype=np.uint8)
    places = np.arange(size) * GRAIN // size
    for image, label in zip(images, labels, strict=True):
        image += patterns[label][:, places[:, None], places]
    return Pixels(images, labels)
