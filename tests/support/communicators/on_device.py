"""Communicators of device arrays, for tests that bring arrays of the host and look at results there.

The device's arrays are the stand-in's, or those of another module with ``asarray`` and ``asnumpy``.
"""

import numpy as np

from support.cupy import stand_in


class OnDevice:
    """A communicator of device arrays that takes and returns host arrays, as the common tests need it."""

    def __init__(self, inner, xp=stand_in):
        self.inner = inner
        self.xp = xp
        self.rank, self.n_ranks = inner.rank, inner.n_ranks

    def all_reduce(self, array, op):
        return self.xp.asnumpy(self.inner.all_reduce(self._there(array), op))

    def reduce(self, array, op, root=0, in_place=False):
        result = self.inner.reduce(self._there(array), op, root, in_place=in_place)
        return None if result is None else self.xp.asnumpy(result)

    def broadcast(self, array, root=0):
        return self.xp.asnumpy(self.inner.broadcast(self._there(array), root))

    def all_gather(self, array, read=list):
        return self.inner.all_gather(self._there(array), read=self._reading(read))

    def gather(self, array, root=0, read=list, only=None):
        return self.inner.gather(self._there(array), root, read=self._reading(read), only=only)

    def _there(self, array):
        """Return a host array as a device array in native byte order; a fake device keeps its strides."""
        array = np.asarray(array, array.dtype.newbyteorder("="))
        return stand_in.ndarray(array) if self.xp is stand_in else self.xp.asarray(array)

    def _reading(self, read):
        return lambda arrays: read([self.xp.asnumpy(array) for array in arrays])
