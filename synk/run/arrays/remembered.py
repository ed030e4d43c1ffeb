"""Remember the commands of a run that may be sent again, until the memory that they refer to is freed.

PreparedCommand.keep -> RememberedCommands.add ... drop_segment, drop_variable, drop_all
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class RememberedCommands:
    """The commands of a run that may be sent again; finalizers may call all methods, at any moment.

    Each is a `PreparedCommand`, which names the ``segments`` and shared ``variables`` that it relies on.
    """

    def __init__(self) -> None:
        self._commands: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, command: Any) -> None:
        """Add a command, to be dropped when a segment or variable that it names is."""
        self._commands[id(command)] = command

    def drop_all(self) -> None:
        """Drop all commands, so that the next calls are prepared anew."""
        self._drop(lambda command: True)

    def drop_segment(self, segment: int) -> None:
        """Drop the commands that read a segment."""
        self._drop(lambda command: segment in command.segments)

    def drop_variable(self, variable: int) -> None:
        """Drop the commands that rely on where a shared variable is stored."""
        self._drop(lambda command: variable in command.variables)

    def _drop(self, refers: Callable[[Any], bool]) -> None:
        for reference in self._commands.valuerefs():
            command = reference()
            if command is not None and refers(command):
                command.drop()
