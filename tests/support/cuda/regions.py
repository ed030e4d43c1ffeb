"""Memory of a launch on the emulator: copies of its arrays, between guards.

    arrays -> Regions -> copies (twice) -> a launch on each -> results -> the arrays

Writing beyond an array is found in the guards, and reading there gives what differs between two runs.
"""

import ctypes

import numpy as np

GUARD = 4096  # bytes before and behind each region


class LaunchError(Exception):
    """CUDA, or the emulator in its place, refuses to run this."""


class Regions:
    """The memory of a launch's arrays: pieces that share none, each copied between guards."""

    def __init__(self, arrays):
        spans = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays if array.size)
        self.spans = []
        for start, end in spans:
            if self.spans and start < self.spans[-1][1]:
                self.spans[-1][1] = max(end, self.spans[-1][1])
            else:
                self.spans.append([start, end])

    @staticmethod
    def memory(start, end):
        """Return the bytes of a region of memory, as an array without a copy."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))

    def copies(self, garbage):
        """Return a copy of each region, aligned like it, between guards full of garbage."""
        copies = []
        for start, end in self.spans:
            buffer = np.full(end - start + 2 * GUARD + 256, garbage, "uint8")
            first = GUARD + (start - buffer.ctypes.data - GUARD) % 256
            buffer[first : first + end - start] = self.memory(start, end)
            copies.append((buffer, first))
        return copies

    def address(self, array, copies):
        """Return where an array starts in the copies; of an array without elements, nowhere."""
        if not array.size:
            return 0
        place = array.ctypes.data
        for (start, end), (buffer, first) in zip(self.spans, copies, strict=True):
            if start <= place < end:
                return buffer.ctypes.data + first + place - start
        raise AssertionError("an array of the launch lies in none of its regions")

    def results(self, copies, garbage, name):
        """Return the bytes of each copy, when nothing has been written around it."""
        results = []
        for (start, end), (buffer, first) in zip(self.spans, copies, strict=True):
            last = first + end - start
            if (buffer[:first] != garbage).any() or (buffer[last:] != garbage).any():
                raise LaunchError(f"{name} wrote beyond an array of {end - start} bytes")
            results.append(buffer[first:last])
        return results

    def write(self, results):
        """Bring results to the arrays."""
        for (start, end), result in zip(self.spans, results, strict=True):
            self.memory(start, end)[:] = result
