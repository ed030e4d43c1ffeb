"""Convolution and its gradients as sums over places of the window, of NCHW arrays of float64, by NumPy."""

from itertools import product

import numpy as np


class Places:
    """The geometry of a window that moves over images; its fields are lists of two, for rows and columns."""

    def __init__(self, pre_padding, post_padding, stride, dilation):
        for pair in (pre_padding, post_padding, stride, dilation):
            assert type(pair) is list
            assert len(pair) == 2
        self.before, self.after, self.stride, self.dilation = pre_padding, post_padding, stride, dilation

    def counts(self, sides, places):
        every = zip(sides, self.before, self.after, places, self.stride, self.dilation, strict=True)
        return [(n + b + a - d * (k - 1) - 1) // s + 1 for n, b, a, k, s, d in every]

    def pad(self, image):
        return np.pad(image, [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)])

    def places(self, sides, places):
        """Yield each place, and the pixels of the padded image that results see through it."""
        counts = self.counts(sides, places)
        for place in product(*map(range, places)):
            every = zip(place, self.dilation, counts, self.stride, strict=True)
            pixels = [slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in every]
            yield place, (slice(None), slice(None), slice(None), *pixels)

    def forward(self, image, weights):
        padded, w = in_groups(self.pad(image), weights)
        total = 0
        for place, pixels in self.places(image.shape[2:], weights.shape[2:]):
            total = total + np.einsum("ngchw,goc->ngohw", padded[pixels], w[(..., *place)])
        return total.reshape(len(image), len(weights), *total.shape[3:])

    def input_gradient(self, loss, weights, dim):
        padded, w = in_groups(self.pad(np.zeros(dim)), weights)
        gy = loss.reshape(len(loss), w.shape[0], w.shape[1], *loss.shape[2:])
        for place, pixels in self.places(dim[2:], weights.shape[2:]):
            padded[pixels] += np.einsum("ngohw,goc->ngchw", gy, w[(..., *place)])
        top, left = self.before
        whole = padded.reshape(*dim[:2], *padded.shape[3:])
        return whole[:, :, top : top + dim[2], left : left + dim[3]]

    def weight_gradient(self, image, loss, dim):
        gradient = np.zeros(dim)
        padded, w = in_groups(self.pad(image), gradient)
        gy = loss.reshape(len(loss), w.shape[0], w.shape[1], *loss.shape[2:])
        for place, pixels in self.places(image.shape[2:], dim[2:]):
            w[(..., *place)] = np.einsum("ngohw,ngchw->goc", gy, padded[pixels])
        return gradient


def in_groups(image, weights):
    """Return (image, group, channel, row, column) and (group, output, channel, row, column), as views."""
    groups = image.shape[1] // weights.shape[1]
    return (
        image.reshape(len(image), groups, weights.shape[1], *image.shape[2:]),
        weights.reshape(groups, len(weights) // groups, *weights.shape[1:]),
    )
