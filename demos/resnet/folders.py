"""Find image files in folders, one folder for each class.

    find(folder, seed) -> training Files, validation Files, names of the classes

Either ``folder/<class>/*.jpg``, and a fifth of each class, chosen by the seed, is for validation; or
``folder/train/<class>/*.jpg`` and ``folder/val/<class>/*.jpg``, as ImageNet is often laid out.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

SUFFIXES = {".jpg", ".jpeg", ".png"}
VALIDATION_SHARE = 0.2  # of each class, where there is no folder val/


class Files(NamedTuple):
    """Image files and their labels."""

    paths: tuple[str, ...]
    labels: np.ndarray  # (files,), int64


def find(folder: str, seed: int) -> tuple[Files, Files, list[str]]:
    """Return the files to train on, those to validate with, and the classes that labels are numbers of.

    Parameters
    ----------
    folder : path
    seed : int
        Of the choice which files are for validation, where the folder does not tell.

    Raises
    ------
    SystemExit
        There are no images, no folder, or other classes for validation than for training.
    """
    top = Path(folder)
    if not top.is_dir():
        raise SystemExit(f"{folder} is not a folder. Leave out --image-dir for synthetic images.")
    if not (top / "train").is_dir() or not (top / "val").is_dir():
        files, classes = in_classes(top)
        return *split(files, seed), classes
    (training, classes), (validation, others) = (in_classes(top / part) for part in ("train", "val"))
    if others != classes:
        odd = ", ".join(sorted(set(classes) ^ set(others)))
        raise SystemExit(f"{top}/train and {top}/val have different classes: {odd} is in one of them only")
    return training, validation, classes


def in_classes(folder: Path) -> tuple[Files, list[str]]:
    """Return the images of all classes, and the classes' names: those of the folders that have images."""
    found = {path.name: images_in(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    classes = [name for name, paths in found.items() if paths]
    if not classes:
        raise SystemExit(
            f"{folder} has no folder with images ({', '.join(sorted(SUFFIXES))}) in it: put those of each "
            "class into a folder of their own, or leave out --image-dir for synthetic images"
        )
    paths = tuple(path for name in classes for path in found[name])
    labels = np.repeat(np.arange(len(classes)), [len(found[name]) for name in classes])
    return Files(paths, labels.astype(np.int64)), classes


def images_in(folder: Path) -> list[str]:
    """Return the paths of images anywhere below a folder, in order."""
    return sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def split(files: Files, seed: int) -> tuple[Files, Files]:
    """Return two parts; the second has `VALIDATION_SHARE` of each class, at least one file of two or more."""
    order = np.random.default_rng(seed).permutation(len(files.labels))
    apart = np.zeros(len(order), bool)
    for label in np.unique(files.labels):
        of_class = np.flatnonzero(files.labels[order] == label)
        n_apart = max(round(VALIDATION_SHARE * len(of_class)), min(1, len(of_class) - 1))
        apart[of_class[:n_apart]] = True
    if not apart.any():
        raise SystemExit("there is one image of each class: none can be put aside for validation")
    return take(files, np.sort(order[~apart])), take(files, np.sort(order[apart]))


def take(files: Files, rows: np.ndarray) -> Files:
    """Return some files, in the order given."""
    return Files(tuple(files.paths[row] for row in rows), files.labels[rows])
