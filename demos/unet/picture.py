"""Draw predictions beside truth: a row for each image, with its mask and the probabilities of pixels.

images, masks, probabilities -> figure -> file
"""

from pathlib import Path

import numpy as np
from extras import need

import synk
from synk.extensions.fit import Callback, Training

N_ROWS = 4


class Picture(Callback):
    """Draws the first validation images when a training has come to its end.

    Parameters
    ----------
    path : str
        Of a PNG file; its folder is made if it is not there.
    predict : synk.Function
        Of images, returns probabilities.
    images, masks : ndarray, shape (rows, 1, size, size)
    """

    def __init__(self, path: str, predict: synk.Function, images: np.ndarray, masks: np.ndarray):
        self._path, self._predict = Path(path), predict
        self._images, self._masks = images[:N_ROWS], masks[:N_ROWS]

    def on_train_end(self, training: Training) -> None:
        if training.error is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draw(self._path, self._images, self._masks, self._predict(self._images))


def draw(path: Path, images: np.ndarray, masks: np.ndarray, probabilities: np.ndarray) -> None:
    """Write a picture with three columns; contours of the predictions lie over the images."""
    figure = need("matplotlib.figure").Figure(figsize=(6, 2 * len(images)), layout="constrained")
    axes = figure.subplots(len(images), 3, squeeze=False)
    for title, ax in zip(("image, predicted edge", "truth", "prediction"), axes[0], strict=True):
        ax.set_title(title)
    for row, image, mask, probability in zip(
        axes, images[:, 0], masks[:, 0], probabilities[:, 0], strict=True
    ):
        row[0].imshow(image, cmap="gray")
        if probability.min() < 0.5 < probability.max():
            row[0].contour(probability, levels=[0.5], colors="tab:orange")
        for ax, values in zip(row[1:], (mask, probability), strict=True):
            ax.imshow(values, cmap="gray", vmin=0, vmax=1)
        for ax in row:
            ax.set_axis_off()
    figure.savefig(path)
