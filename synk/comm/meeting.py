"""Ranks tell each other what they bring to a collective, and what link they have.

    what this rank brings -> words in the control block -> barrier -> compare -> everyone's shape

For communicators whose data moves elsewhere: only words pass here. Whoever meets must let all
ranks meet at a barrier once more before it writes its next words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from synk.comm.header import ARENA, SHARED, Header, check_equal, words_of
from synk.transport.sync import Barrier, ControlBlock


class Met(NamedTuple):
    """What all ranks have said, in rank order."""

    shapes: list[tuple[int, ...]]
    links: list[int]  # the number of each rank's link, 0 for none


class Meeting:
    """Where the ranks of a run compare what they are about to do.

    Parameters
    ----------
    rank : int
    control, barrier
        The run's shared words and this rank's barrier on them.
    """

    def __init__(self, rank: int, control: ControlBlock, barrier: Barrier):
        self._rank = rank
        self._ranks = range(control.n_ranks)
        self._barrier = barrier
        # Asked for again each time: views of the words would keep them mapped beyond the run.
        self._header = control.header

    def agree(self, kind: str, op: str, array: Any, link: int, shapes: bool = True) -> Met:
        """Return what all ranks bring to this collective.

        Parameters
        ----------
        kind : str
            Of collective, as named in errors: at most 16 letters.
        op : str
        array : array
            Of any array module; only its dtype and shape are looked at.
        link : int
            The number of this rank's link.
        shapes : bool
            Whether shapes must be equal.

        Raises
        ------
        CollectiveMismatch
            On every rank, if what they bring differs.
        """
        words = words_of(kind, op, array.dtype, array.shape, is_shared=False)
        end = SHARED + len(words)
        mine = self._header(self._rank)
        # The place of an arena's length: here ranks have links instead.
        mine[ARENA] = link
        mine[SHARED:end] = words
        self._barrier.wait()
        headers = [self._header(rank) for rank in self._ranks]
        links = [header[ARENA] for header in headers]
        if all(header[SHARED:end] == words for header in headers):
            return Met([tuple(array.shape)] * len(headers), links)
        brought = [Header.read(header) for header in headers]
        check_equal(brought, shapes)
        return Met([header.shape for header in brought], links)
