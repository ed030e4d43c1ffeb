"""The training data and the options of both sides of the U-Net benchmark, in NumPy only.

pictures(rows, size) -> float32 images and masks, (rows, 1, size, size)
span(number, batch, rows) -> which of them a step takes
"""

import argparse

import numpy as np

N_BATCHES = 4  # that take turns
RATE = 1e-3


def parse(description: str) -> argparse.Namespace:
    """Return the options of a leader."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    add = parser.add_argument
    add("--weights", required=True, metavar="NPZ", help="of the first step; synk writes them")
    add("--base", type=int, default=16, help="channels of the first level")
    add("--depth", type=int, default=3, help="levels down")
    add("--size", type=int, default=64, help="of images, in pixels")
    add("--batch", type=int, default=16, help="images a rank")
    add("--per", choices=("batch", "image"), default="batch", help="what has a Dice coefficient")
    add("--layout", choices=("channels_last", "contiguous"), default="contiguous", help="torch's")
    for name, default in (("ranks", 1), ("rank", 0), ("port", 0)):
        add(f"--{name}", type=int, default=default)
    return parser.parse_args()


def pictures(rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return discs in noise, and their masks; always the same."""
    rng = np.random.default_rng(5)
    down, across = np.mgrid[:size, :size] / size
    centres, radii = rng.uniform(0.3, 0.7, (2, rows, 1, 1)), rng.uniform(0.1, 0.28, (rows, 1, 1))
    masks = (down - centres[0]) ** 2 + (across - centres[1]) ** 2 < radii**2
    images = masks + rng.normal(size=masks.shape)
    return images[:, None].astype("float32"), masks[:, None].astype("float32")


def span(number: int, batch: int, rows: int) -> slice:
    """Return the rows of a step: next to each other, so that both sides read them in place."""
    start = number * batch % rows
    return slice(start, start + batch)
