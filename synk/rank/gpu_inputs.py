"""Bring rows to the device before a program there computes: the inputs of such programs, for `RowInput`.

Shards.inputs -> UploadedInput.part -> InputBuffers: these rows, and behind them those that come next
shared variable -> ResidentInput.part -> rows of a value that stays on the device
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from synk.device import Device
from synk.device.uploads import InputBuffers, Request, is_large
from synk.values.rows import Rows, slices


class UploadedInput(NamedTuple):
    """Rows of an array on the host, brought to the device slice by slice.

    While one slice computes, the next is brought; while the last one does, the first of the next call.
    """

    array: Any
    rows: Rows
    buffers: InputBuffers
    key: Any  # of this call's rows: under it they may have been started
    parts: Sequence[tuple[int, int]]  # of the rows, in the order in which they will be asked for
    following: Request | None  # of the next call
    memory: Any = None  # as of `Request`

    def part(self, start: int, stop: int) -> Any:
        request = self._request(start, stop)
        if not is_large(request):
            rows = request.rows.of(self.array)  # the program sends it itself
            # From page-locked memory, as this may be for larger parts, CuPy would read when the call is over.
            return rows if self.memory is None or request.rows.indices is not None else rows.copy()
        there = self.buffers.take(request)
        following = self._following(start, stop)
        if following is not None:
            self.buffers.start(following)
        return there

    def _request(self, start: int, stop: int) -> Request:
        return Request((self.key, start, stop), self.array, self.rows.part(start, stop), self.memory)

    def _following(self, start: int, stop: int) -> Request | None:
        after = self.parts.index((start, stop)) + 1 if (start, stop) in self.parts else 0
        if 0 < after < len(self.parts):
            return self._request(*self.parts[after])
        return self.following


def first_of_next(key: Any, array: Any, rows: Rows, num_slices: int, memory: Any) -> Request | None:
    """Return the request for the first slice of a call to come, if it has rows."""
    parts = slices(len(rows), num_slices)
    if not parts:
        return None
    start, stop = parts[0]
    return Request((key, start, stop), array, rows.part(start, stop), memory)


class ResidentInput(NamedTuple):
    """Rows of an array that is on the device."""

    array: Any
    rows: Rows
    device: Device

    def part(self, start: int, stop: int) -> Any:
        rows = self.rows.part(start, stop)
        if rows.indices is None:
            return rows.of(self.array)
        return self.array[self.device.from_host(rows.indices[rows.start : rows.stop])]
