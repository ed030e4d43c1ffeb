"""The memory and doorbells that all ranks of a machine share: control words, eventfds, mailboxes.

Crew (master) -> Commons -> inherited by a fork, or by descriptors -> Commons of a worker
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from synk.transport.commands.mailbox import Mailboxes
from synk.transport.commands.sync import DELIVERED, ControlBlock, Doorbells
from synk.transport.processes.stderr_log import StderrLog


class Commons:
    """The control words, doorbells and mailboxes of a run: new ones, or those behind ``descriptors``."""

    def __init__(self, n_ranks: int, descriptors: Sequence[int] | None = None):
        self.n_ranks = n_ranks
        control, mailboxes, *bells = descriptors or (None, None)
        with ExitStack() as made:
            self.control = ControlBlock(n_ranks, control)
            made.callback(self.control.close)
            self.bells = Doorbells(n_ranks, [bell for bell in bells if bell is not None])
            made.callback(self.bells.close)
            self.mailboxes = Mailboxes(n_ranks, mailboxes)
            made.callback(self.mailboxes.close)
            self._made = made.pop_all()

    def stderr_log(self, rank: int, file: int | None = None) -> StderrLog:
        """Return the log of a worker's standard error, in a new file or in ``file``, of another process."""
        word = (rank, DELIVERED)
        return StderrLog(partial(self.control.get, *word), partial(self.control.set, *word), file)

    def descriptors(self) -> list[int]:
        """Return the ``2 + n_ranks`` descriptors from which another process makes its `Commons`."""
        bells = [self.bells.fileno(rank) for rank in range(self.n_ranks)]
        return [self.control.segment.descriptor, self.mailboxes.segment.descriptor, *bells]

    def seal(self) -> None:
        """Close the descriptors of memory; processes that are forked from now on inherit the mappings."""
        self.control.segment.seal()
        self.mailboxes.segment.seal()

    def close(self) -> None:
        self._made.close()
