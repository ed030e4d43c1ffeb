"""Run collectives that the script calls by themselves, each as one command.

A call that repeats the last one of the same collective sends the same command again, without preparing it.

verb(*arguments) -> CollectiveRunner.run -> the last command, if the call repeats it
                                         -> Collective.prepare_alone -> a new command -> its results
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from pytensor.compile.sharedvalue import SharedVariable

from synk.run.arrays.owner import Owner
from synk.run.collectives.collective import Collective
from synk.run.functions.prepared import PreparedCommand


class LastCall(NamedTuple):
    """The last call of a collective on one variable, and its command, which a repeated call sends again."""

    variable: weakref.ref[Any]
    options: tuple[Any, ...]
    keywords: dict[str, Any]
    command: PreparedCommand

    def repeated_by(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Return whether a call with these arguments can send the command again."""
        if args[0] is None or self.variable() is not args[0]:
            return False
        same = self.options == args[1:] and self.keywords == keywords
        return same and self.command.rows((), None, 1) is not None


class CollectiveRunner:
    """Runs the collectives of one run, one at a time."""

    def __init__(self, owner: Owner):
        self._owner = owner
        self._turns: dict[type, AbstractContextManager[None]] = {}
        self._last: dict[type, LastCall] = {}

    def run(self, kind: type[Collective[Any]], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the collective ``kind`` with these arguments, and return what its verb returns."""
        if kind not in self._turns:
            self._turns[kind] = self._owner.turn(kind.name)
        with self._turns[kind]:
            last = self._last.get(kind)
            if last is not None:
                if not args and "shared_vars" in keywords:
                    args = (keywords.pop("shared_vars"),)
                if args and last.repeated_by(args, keywords):
                    last.command.run(self._owner, 0, 0)
                    return None
            return self._run_anew(kind, args, keywords)

    def _run_anew(self, kind: type[Collective[Any]], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Prepare and run the command of a call, and keep it if a later call may repeat it."""
        collective = kind.of(args, keywords)
        prepared = collective.prepare_alone(self._owner)
        command = PreparedCommand(prepared, num_slices=1, effects=[collective.effect(self._owner)])
        values = command.run(self._owner, 0, 0)
        for entry in prepared:
            # A step that may be sent again is the only one of its command; its variable is the first
            # argument.
            variable = None if entry.reuse is None else args[0] if args else keywords.pop("shared_vars")
            if isinstance(variable, SharedVariable):
                command.keep(self._owner.memory)
                self._last[kind] = LastCall(weakref.ref(variable), args[1:], keywords, command)
        return values[0] if values else None
