"""Read image files inside the graph: every rank decodes the images of its own rows, while it computes.

    numbers of files, epoch -> ReadImages -> uint8 (rows, 3, size, size)

For training, a random part of the image, randomly flipped; for validation, its centre. What comes out depends
on the seed, the epoch and the number of the file alone: any number of ranks sees the same pixels.
"""

from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytensor.tensor as pt
from extras import need
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.type import integer_dtypes

Box = tuple[float, float, float, float]  # left, upper, right, lower, in pixels of the file

AREA = (0.08, 1.0)  # of a random part, as a share of the image: Szegedy and others (2014), arXiv:1409.4842
RATIO = (3 / 4, 4 / 3)  # its width to its height
CENTRE = 7 / 8  # of the shorter side; 224 of 256 pixels are the custom
TRIES = 10  # to find a part that fits


class ReadImages(Op):
    """Decode image files, and cut and scale them to squares.

    Parameters
    ----------
    paths : tuple of str
    size : int
        Pixels, of each side.
    seed : int, optional
        Of random parts and flips. By default the centre is taken, in every epoch.
    """

    __props__ = ("paths", "size", "seed")

    def __init__(self, paths: tuple[str, ...], size: int, seed: int | None = None):
        self.paths, self.size, self.seed = paths, size, seed

    def make_node(self, numbers: Any, epoch: Any = 0) -> Apply:
        numbers, epoch = pt.as_tensor(numbers, ndim=1), pt.as_tensor(epoch, ndim=0)
        for variable in (numbers, epoch):
            if variable.dtype not in integer_dtypes:
                raise TypeError(
                    f"{variable} is of {variable.dtype}; pass integers: numbers of files, an epoch"
                )
        pixels = pt.tensor(dtype="uint8", shape=(numbers.type.shape[0], 3, self.size, self.size))
        return Apply(self, [numbers, epoch], [pixels])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        numbers, epoch = inputs
        pixels = np.empty((len(numbers), 3, self.size, self.size), np.uint8)
        for row, number in enumerate(numbers):
            pixels[row] = self.read(int(number), int(epoch)).transpose(2, 0, 1)
        outputs[0][0] = pixels

    def read(self, number: int, epoch: int) -> np.ndarray:
        """Return one image.

        Returns
        -------
        uint8 ndarray, shape (size, size, 3)

        Raises
        ------
        ValueError
            The file is missing, or no image; the message names it.
        """
        pillow = need("PIL.Image")
        try:
            with pillow.open(self.paths[number]) as image:
                box, flip = self.part(image.width, image.height, number, epoch)
                scaled = image.convert("RGB").resize((self.size, self.size), pillow.Resampling.BILINEAR, box)
        # Decoders of broken files raise all sorts of things.
        except Exception as error:
            raise ValueError(f"{self.paths[number]} cannot be read as an image: {error}") from error
        pixels = np.asarray(scaled)
        return pixels[:, ::-1] if flip else pixels

    def part(self, width: int, height: int, number: int, epoch: int) -> tuple[Box, bool]:
        """Decide which part of an image is taken, and whether it is flipped."""
        if self.seed is None:
            return centre(width, height, CENTRE), False
        rng = np.random.default_rng((self.seed, epoch, number))
        return random_part(width, height, rng), bool(rng.random() < 0.5)


def random_part(width: int, height: int, rng: np.random.Generator) -> Box:
    """Return a rectangle of random area, form and place.

    After `TRIES` that do not fit, as in a very long image, it is the largest square amid it.
    """
    for _ in range(TRIES):
        area = width * height * rng.uniform(*AREA)
        ratio = exp(rng.uniform(log(RATIO[0]), log(RATIO[1])))
        across, down = sqrt(area * ratio), sqrt(area / ratio)
        if across <= width and down <= height:
            left, upper = rng.uniform(0, width - across), rng.uniform(0, height - down)
            return left, upper, left + across, upper + down
    return centre(width, height, 1.0)


def centre(width: int, height: int, share: float) -> Box:
    """Return a square amid the image, with a share of its shorter side."""
    side = share * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side
