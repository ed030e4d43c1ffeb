"""Bring rows to the device before a program there computes: the inputs of such programs, for `RowInput`.

Shards.inputs -> FedInput.part -> Lane: these rows, and behind them those that come next
shared variable -> ResidentInput.part -> rows of a value that stays on the device
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from synk.device import Device
from synk.device.feed import Lane, Order, is_large
from synk.values.rows import Rows, slices


class FedInput(NamedTuple):
    """Rows of an array on the host, brought to the device slice by slice.

    While one slice computes, the next is brought; while the last one does, the first of the next call.
    """

    array: Any
    rows: Rows
    lane: Lane
    key: Any  # of this call's rows: under it they may have been started
    parts: Sequence[tuple[int, int]]  # of the rows, in the order in which they will be asked for
    following: Order | None  # of the next call
    memory: Any = None  # as of `Order`

    def part(self, start: int, stop: int) -> Any:
        order = self._order(start, stop)
        if not is_large(order):
            rows = order.rows.of(self.array)  # the program sends it itself
            # From page-locked memory, as this may be for larger parts, CuPy would read when the call is over.
            return rows if self.memory is None or order.rows.indices is not None else rows.copy()
        there = self.lane.take(order)
        following = self._following(start, stop)
        if following is not None:
            self.lane.start(following)
        return there

    def _order(self, start: int, stop: int) -> Order:
        return Order((self.key, start, stop), self.array, self.rows.part(start, stop), self.memory)

    def _following(self, start: int, stop: int) -> Order | None:
        after = self.parts.index((start, stop)) + 1 if (start, stop) in self.parts else 0
        if 0 < after < len(self.parts):
            return self._order(*self.parts[after])
        return self.following


def first_of_next(key: Any, array: Any, rows: Rows, num_slices: int, memory: Any) -> Order | None:
    """Return the order for the first slice of a call to come, if it has rows."""
    parts = slices(len(rows), num_slices)
    if not parts:
        return None
    start, stop = parts[0]
    return Order((key, start, stop), array, rows.part(start, stop), memory)


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
