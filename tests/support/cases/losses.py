"""Losses as graphs and as formulas in NumPy, with images, masks, labels and weights."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from scipy.special import expit, log_softmax

from synk.extensions import losses

PLAIN = Mode("py", None)
N_ROWS = 7
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(N_ROWS, 3, 4, 2))
MASKS = RANDOM.integers(0, 2, LOGITS.shape)
MASKS[2] = 0  # an image without an object
LABELS = RANDOM.integers(0, 3, (N_ROWS, 4, 2))
LABELS[1, 0] = LABELS[4] = 255
WEIGHTS = RANDOM.uniform(0, 2, N_ROWS)
CLASSES = np.array([0.5, 2.0, 1.25])


def mean(elements, weights=None):
    if weights is None:
        return elements.mean()
    return np.average(elements, weights=np.broadcast_to(by_row(weights, elements), elements.shape))


def by_row(weights, elements):
    return weights.reshape(-1, *(1,) * (elements.ndim - 1))


def dice(z, y, w, axes=None, smooth=1.0):
    p = expit(z)
    w = 1 if w is None else by_row(w, z)
    both, each = (2 * w * p * y).sum(axes), (w * (p + y)).sum(axes)
    return 1 - (both + smooth) / (each + smooth)


def binary(z, y, positive=1.0):
    return -positive * y * np.log(expit(z)) - (1 - y) * np.log(expit(-z))


def focal(z, y, gamma, alpha):
    q = np.where(y == 1, expit(z), expit(-z))
    return -np.where(y == 1, alpha, 1 - alpha) * (1 - q) ** gamma * np.log(q)


def huber(z, y, delta):
    e = abs(z - y)
    return np.where(e <= delta, e**2 / 2, delta * (e - delta / 2))


def classes(z, y, w, c=(1, 1, 1), smoothing=0.0, ignored=255):
    """Label by label, as the docstring says it."""
    total = divisor = 0.0
    for row, *pixel in np.ndindex(y.shape):
        label = y[(row, *pixel)]
        if label == ignored:
            continue
        log_p = log_softmax(z[(row, slice(None), *pixel)])
        loss = -(1 - smoothing) * c[label] * log_p[label] - smoothing / 3 * np.dot(c, log_p)
        total += w[row] * loss
        divisor += w[row] * c[label]
    return total / divisor


z, y, labels, w = pt.dtensor4("z"), pt.ltensor4("y"), pt.ltensor3("labels"), pt.dvector("w")
p = pt.sigmoid(z)
ONES = np.ones(N_ROWS)
PIXELS = (1, 2, 3)

# Of each: the loss as a graph, and as a formula of logits, masks, labels and weights.
CASES = {
    "dice of the batch": (losses.dice(p, y), lambda z, y, k, w: dice(z, y, None)),
    "dice of the batch, weighted": (losses.dice(p, y, weights=w), lambda z, y, k, w: dice(z, y, w)),
    "dice of images": (
        losses.dice(p, y, per="image", smooth=0),
        lambda z, y, k, w: dice(z, y, None, PIXELS, 0).mean(),
    ),
    "dice of images, weighted": (
        losses.dice(p, y, per="image", weights=w),
        lambda z, y, k, w: np.average(dice(z, y, None, PIXELS), weights=w),
    ),
    "dice of channels": (
        losses.dice(p, y, per_channel=True),
        lambda z, y, k, w: dice(z, y, None, (0, 2, 3)).mean(),
    ),
    "dice of channels of images": (
        losses.dice(p, y, per="image", per_channel=True, smooth=0.5),
        lambda z, y, k, w: dice(z, y, None, (2, 3), 0.5).mean(),
    ),
    "binary": (losses.binary_cross_entropy(z, y), lambda z, y, k, w: binary(z, y).mean()),
    "binary, weighted": (
        losses.binary_cross_entropy(z, y, positive_weight=3, weights=w),
        lambda z, y, k, w: mean(binary(z, y, 3.0), w),
    ),
    "focal": (
        losses.focal(z, y, gamma=1.5, alpha=0.25, weights=w),
        lambda z, y, k, w: mean(focal(z, y, 1.5, 0.25), w),
    ),
    "huber": (losses.huber(z, y, delta=0.7), lambda z, y, k, w: huber(z, y, 0.7).mean()),
    "huber, summed": (
        losses.huber(z, y, weights=w, reduction="sum"),
        lambda z, y, k, w: (by_row(w, z) * huber(z, y, 1.0)).sum(),
    ),
    "classes": (
        losses.cross_entropy(z, labels % 3),
        lambda z, y, k, w: classes(z, k % 3, np.ones(len(k))),
    ),
    "classes, all options": (
        losses.cross_entropy(z, labels, class_weights=CLASSES, label_smoothing=0.1, ignored=255, weights=w),
        lambda z, y, k, w: classes(z, k, w, CLASSES, 0.1),
    ),
    "classes, some ignored": (
        losses.cross_entropy(z, labels, ignored=255),
        lambda z, y, k, w: classes(z, k, np.ones(len(k))),
    ),
}
INPUTS = [z, y, labels, w]
VALUES = [LOGITS, MASKS, LABELS, WEIGHTS]


def compiled(graph, inputs=INPUTS, **options):
    return pytensor.function(inputs, graph, mode=PLAIN, on_unused_input="ignore", **options)
