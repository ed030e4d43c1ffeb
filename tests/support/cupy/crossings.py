"""Record the sizes of arrays that are copied between host and device, in all processes of a run.

    crossings = Crossings(monkeypatch); synk.fork(...); ...; crossings.take(), or crossings.take_sums()

Arrays are those of ``stand_in``.
"""

import mmap
import os

import numpy as np

from support.cupy import stand_in


class Crossings:
    """The largest array, and all bytes, that went up and down since the last look: rank 0's, and of workers.

    Sums are those of one worker: several would write to one word.
    """

    def __init__(self, monkeypatch):
        memory = mmap.mmap(-1, 8 * 8)
        self.words, self.sums = np.frombuffer(memory, np.int64).reshape(2, 2, 2)
        self.master = os.getpid()
        monkeypatch.setattr(stand_in, "array", self.counted(stand_in.array, 0))
        monkeypatch.setattr(stand_in, "asnumpy", self.counted(stand_in.asnumpy, 1))

    def counted(self, function, way):
        def counted(value, *args, **keywords):
            if (way == 1) == isinstance(value, stand_in.ndarray):
                who = int(os.getpid() != self.master)
                nbytes = getattr(value, "nbytes", 0)
                self.words[who, way] = max(self.words[who, way], nbytes)
                self.sums[who, way] += nbytes
            return function(value, *args, **keywords)

        return counted

    def take(self):
        taken = self.words.tolist()
        self.words[:] = 0
        return taken

    def take_sums(self):
        taken = self.sums.tolist()
        self.sums[:] = 0
        return taken
