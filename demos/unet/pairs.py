"""Images and their masks: drawn at random, or from two folders.

ellipses(rows, size, rng)            -> Pairs
find(images, masks) -> read -> split -> training Pairs, validation Pairs
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from extras import need

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"}
OF_MASKS = "_mask"  # may end the name of a mask: 1_1.tif and 1_1_mask.tif
VALIDATION_SHARE = 0.2
BRIGHT = 127  # of 255; what is brighter in a mask is in it


class Pairs(NamedTuple):
    """Images of mean 0 and deviation 1, and their masks."""

    images: np.ndarray  # (rows, 1, size, size), float32
    masks: np.ndarray  # (rows, 1, size, size), uint8: 0 or 1


def ellipses(rows: int, size: int, rng: np.random.Generator) -> Pairs:
    """Draw ellipses in speckle, as of ultrasound: noise that multiplies, and is alike in neighbours.

    Parameters
    ----------
    rows, size : int
        Images, and pixels of each side.
    rng : numpy.random.Generator
    """
    down, across = np.mgrid[:size, :size] / size
    images, masks = np.empty((rows, 1, size, size), "float32"), np.empty((rows, 1, size, size), "uint8")
    for image, mask in zip(images[:, 0], masks[:, 0], strict=True):
        y, x = rng.uniform(0.3, 0.7, 2)
        long, short, turn = *rng.uniform(0.1, 0.28, 2), rng.uniform(0, np.pi)
        u = (across - x) * np.cos(turn) + (down - y) * np.sin(turn)
        v = (down - y) * np.cos(turn) - (across - x) * np.sin(turn)
        mask[:] = (u / long) ** 2 + (v / short) ** 2 < 1
        brightness = np.where(mask, rng.uniform(0.5, 0.7), rng.uniform(0.25, 0.35))
        shade = 0.1 * np.sin(across * rng.uniform(3, 9) + rng.uniform(0, 6))
        image[:] = (brightness + shade) * speckle(size, rng)
    return Pairs(normalised(images), masks)


def speckle(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the lengths of random waves, each mixed with those of the four pixels around."""
    waves = rng.normal(size=(2, size + 2, size + 2))
    mixed = 2 * waves[:, 1:-1, 1:-1] + waves[:, :-2, 1:-1] + waves[:, 2:, 1:-1]
    mixed += waves[:, 1:-1, :-2] + waves[:, 1:-1, 2:]
    return np.hypot(*mixed) / np.sqrt(8)


def normalised(images: np.ndarray) -> np.ndarray:
    """Return each image with mean 0 and deviation 1; one without any contrast becomes zeros."""
    about_zero = images - images.mean(axis=(2, 3), keepdims=True)
    deviations = about_zero.std(axis=(2, 3), keepdims=True)
    return (about_zero / np.where(deviations, deviations, 1)).astype("float32")


def find(images: str, masks: str) -> list[tuple[Path, Path]]:
    """Return the files of images and masks that belong together by their names.

    ``1.png`` has the mask ``1.png`` or ``1_mask.png``, with any ending; both may lie in one folder.

    Raises
    ------
    SystemExit
        There is no folder, there are no images, or an image or a mask has no partner; each is named.
    """
    found = {}
    for option, folder in (("--images", images), ("--masks", masks)):
        if not Path(folder).is_dir():
            raise SystemExit(f"{option} {folder} is not a folder. Leave both out for synthetic images.")
        paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES)
        if Path(images).resolve() == Path(masks).resolve():
            paths = [path for path in paths if path.stem.endswith(OF_MASKS) == (option == "--masks")]
        found[option] = named(paths)
    known, wanted = found["--images"], found["--masks"]
    problems = [f"{path} has no mask in {masks}" for name, path in known.items() if name not in wanted]
    problems += [f"{path} has no image in {images}" for name, path in wanted.items() if name not in known]
    if problems:
        raise SystemExit("\n".join([*problems, f"{len(problems)} files do not pair: add or remove them"]))
    if len(known) < 2:
        raise SystemExit(f"{images} has {len(known)} images ({', '.join(sorted(SUFFIXES))}): two are needed")
    return [(path, wanted[name]) for name, path in known.items()]


def named(paths: list[Path]) -> dict[str, Path]:
    """Return files by the name of their pair; exit if two have the same."""
    by_name: dict[str, Path] = {}
    for path in paths:
        name = path.stem.removesuffix(OF_MASKS)
        if name in by_name:
            raise SystemExit(f"{by_name[name]} and {path} are both called {name}: rename one of them")
        by_name[name] = path
    return by_name


def read(files: list[tuple[Path, Path]], size: int) -> Pairs:
    """Return grey images of ``size`` pixels each way, and masks of what is brighter than half.

    Raises
    ------
    SystemExit
        A file is no image, or an image and its mask have different sizes; they are named. Or all masks are
        empty.
    """
    shape = (len(files), 1, size, size)
    images, masks = np.empty(shape, "float32"), np.empty(shape, "uint8")
    for row, (of_image, of_mask) in enumerate(files):
        image, image_size = grey(of_image, size, "BILINEAR")
        mask, mask_size = grey(of_mask, size, "NEAREST")
        if image_size != mask_size:
            raise SystemExit(f"{of_image} is {image_size} pixels large, but its mask {of_mask} {mask_size}")
        images[row, 0], masks[row, 0] = image, mask > BRIGHT
    if not masks.any():
        raise SystemExit(f"no mask has a pixel above {BRIGHT}: multiply masks of zeros and ones by 255")
    return Pairs(normalised(images), masks)


def grey(path: Path, size: int, how: str) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the grey values of a file's image, brought to ``size`` pixels each way, and its own size."""
    pillow = need("PIL.Image")
    try:
        with pillow.open(path) as opened:
            resized = opened.convert("L").resize((size, size), getattr(pillow, how))
            return np.asarray(resized), opened.size
    except OSError as error:
        raise SystemExit(f"{path} cannot be read as an image: {error}") from None


def split(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    """Return two parts; the second has `VALIDATION_SHARE` of the rows, at least one."""
    order = np.random.default_rng(seed).permutation(len(pairs.masks))
    n_apart = max(1, round(VALIDATION_SHARE * len(order)))
    parts = np.sort(order[n_apart:]), np.sort(order[:n_apart])
    training, validation = (Pairs(pairs.images[rows], pairs.masks[rows]) for rows in parts)
    return training, validation
