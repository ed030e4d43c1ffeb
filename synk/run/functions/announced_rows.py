"""Rows that a call announces by ``next_batch`` for the next one, so that ranks gather them ahead.

call with next_batch -> AnnouncedRows.take -> `messages.Ahead`, under a token: ranks gather these rows
the next call -> AnnouncedRows.take -> the token, if it reads the announced rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from synk.run.functions.selections import Selection, is_gathered
from synk.values import messages
from synk.values.rows import SelectedRows, same_rows


class Announced(NamedTuple):
    """The rows that a call has announced, and the state of the Data from which ranks gather them."""

    state: list[tuple[messages.ArrayRef, int]]  # of each Data its reference and `Data.changes`
    rows: SelectedRows


class AnnouncedRows:
    """The rows that the last call of a function has announced; a token names them in messages to the ranks.

    Attributes
    ----------
    token : int
        The number of the last announcement; 0 before the first.
    """

    def __init__(self) -> None:
        self.token = 0
        self._last: Announced | None = None

    def forget(self) -> None:
        """Forget the announced rows, because the ranks no longer have them."""
        self._last = None

    def take(self, scattered: Sequence[Any], selected: Selection) -> int:
        """Return the token under which the ranks have gathered this call's rows, or 0; note the next ones.

        The ranks have gathered them if the last call announced the same rows, and the Data have not changed
        since.
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
