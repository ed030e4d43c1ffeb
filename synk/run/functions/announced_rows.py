"""Rows that a call announces for the next one, so that the ranks gather them beside its computation.

call with next_batch -> AnnouncedRows.take -> Ahead: gather these -> the next call: take -> their token
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from synk.run.functions.selections import Selection, is_gathered
from synk.values import messages
from synk.values.rows import SelectedRows, same_rows


class Announced(NamedTuple):
    """Rows of the Data of a call."""

    state: list[tuple[messages.ArrayRef, int]]  # of each Data, and how often it was handed out
    rows: SelectedRows


class AnnouncedRows:
    """The rows that the last call of a function has announced, by a token that the ranks know, too.

    Attributes
    ----------
    token : int
        Of the last announcement; 0 before the first.
    """

    def __init__(self) -> None:
        self.token = 0
        self._last: Announced | None = None

    def forget(self) -> None:
        """Forget the rows: the ranks do not have them any more."""
        self._last = None

    def take(self, scattered: Sequence[Any], selected: Selection) -> int:
        """Return the token under which the ranks have the rows of this call, or 0; announce the next ones.

        They have them if those were announced, and the Data are as they were then.
        """
        before, token, self._last = self._last, self.token, None
        if before is None and selected.following is None:
            return 0
        state = [(entry.ref(), entry.changes) for entry in scattered if is_gathered(entry)]
        if selected.following is not None:
            self.token += 1
            self._last = Announced(state, selected.following)
        if before is None or before.state != state or selected.batch is None:
            return 0
        return token if same_rows(before.rows, selected.batch) else 0
