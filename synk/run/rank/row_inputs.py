"""The arguments of a program that differ from rank to rank: rows, and numbers of rows.

array, rows of this rank -> RowInput -> part: the rows of a slice -> program
                                     -> stand_in: a row for a slice in which the rank has none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synk.values.rows import SelectedRows


@dataclass(slots=True)
class RowInput:
    """An array and the rows of it that belong to this rank."""

    array: Any
    rows: SelectedRows
    room: Any = None  # memory into which rows of an index list are gathered, for `SelectedRows.of`

    def part(self, start: int, stop: int) -> Any:
        """Return rows ``start:stop`` of this rank's rows, as an array."""
        rows = self.rows
        if rows.indices is None:
            return self.array[rows.start + start : rows.start + stop]
        return rows.part(start, stop).of(self.array, self.room)


def stand_in(entry: RowInput) -> Any:
    """Return one row of an input for a slice without rows: the rank's last one, or the row before its part.

    If the array has no rows at all, it is a row of zeros.
    """
    at = max(entry.rows.stop - 1, 0)
    if entry.rows.indices is not None:
        at = int(entry.rows.indices[at])
    row = entry.array[at : at + 1].copy()
    return row if len(row) else np.zeros((1, *row.shape[1:]), row.dtype)


def numbers_of_rows(n_rows: int, total_rows: int, first_row: int, leads: bool) -> list[Any]:
    """Return the numbers of a slice's rows that graphs may read, as 0-d arrays, in the order of inputs.

    They are the values of the variables of these names in `synk.exact.run_values`, where they are explained.
    """
    numbers = [np.asarray(number, dtype="int64") for number in (n_rows, total_rows, first_row)]
    return [*numbers, np.asarray(leads)]
