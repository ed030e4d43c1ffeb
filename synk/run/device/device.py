"""The interface of a device that a rank computes on.

Programs and collectives know of the device only its arrays and its array module ``xp``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Device(ABC):
    """A device and its array module.

    Attributes
    ----------
    name : str
        The name by which ``synk.fork(device=name)`` chooses it.
    xp : module
        NumPy, or a module with its interface.
    """

    name: str
    xp: Any

    @abstractmethod
    def activate(self) -> None:
        """Prepare the device in this process, after the fork."""

    def bind(self) -> None:  # noqa: B027  (most devices have nothing to do)
        """Make the device usable in the calling thread; each thread calls this before it runs a program."""

    @abstractmethod
    def deactivate(self) -> None:
        """Undo the changes that `activate` has made in this process."""

    @abstractmethod
    def mode(self, observe: Any = None) -> Any:
        """Return the PyTensor Mode that compiles programs for this device, which leave their results on it.

        ``observe`` is called around every node of the programs, see `synk.compile.programs.emit`.
        """

    @abstractmethod
    def from_host(self, array: Any) -> Any:
        """Return a NumPy array as an array of the device."""

    @abstractmethod
    def to_host(self, array: Any) -> Any:
        """Return an array of the device as a NumPy array; return other values unchanged."""
