"""Communicators of device arrays, for tests that bring arrays of the host and look at results there."""

import numpy as np
import stand_in


class OnDevice:
    """A communicator whose arrays are the stand-in's, by the methods that tests of host arrays call."""

    def __init__(self, inner):
        self.inner = inner
        self.rank, self.n_ranks = inner.rank, inner.n_ranks

    def all_reduce(self, array, op):
        return stand_in.asnumpy(self.inner.all_reduce(on_device(array), op))

    def reduce(self, array, op, root=0, in_place=False):
        result = self.inner.reduce(on_device(array), op, root, in_place=in_place)
        return None if result is None else stand_in.asnumpy(result)

    def broadcast(self, array, root=0):
        return stand_in.asnumpy(self.inner.broadcast(on_device(array), root))

    def all_gather(self, array, read=list):
        return self.inner.all_gather(on_device(array), read=reading(read))

    def gather(self, array, root=0, read=list, only=None):
        return self.inner.gather(on_device(array), root, read=reading(read), only=only)


def on_device(array):
    """Return a device array with the same strides; a device has its own byte order only."""
    return stand_in.ndarray(np.asarray(array, array.dtype.newbyteorder("=")))


def reading(read):
    return lambda arrays: read([stand_in.asnumpy(array) for array in arrays])
