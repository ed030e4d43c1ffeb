"""The interface of a device that a rank computes on.

Programs and collectives hold arrays of ``xp`` and nothing else of the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Device(ABC):
    """A device and its array module.

    Attributes
    ----------
    name : str
        As in ``fork(device=name)``.
    xp : module
        NumPy, or a module with its interface.
    """

    name: str
    xp: Any

    @abstractmethod
    def activate(self) -> None:
        """Prepare the device in this process, after the fork."""

    def bind(self) -> None:  # noqa: B027  (most devices have nothing to do)
        """Let the calling thread compute on the device; every thread calls this before it runs a program."""

    @abstractmethod
    def deactivate(self) -> None:
        """Give back what `activate` changed in this process."""

    @abstractmethod
    def mode(self, observe: Any = None) -> Any:
        """Return the PyTensor Mode that compiles for this device: results stay where they are computed.

        ``observe`` is put around every node of the programs, see `synk.compile.programs.emit`.
        """

    @abstractmethod
    def from_host(self, array: Any) -> Any:
        """Return a NumPy array as an array of the device."""

    @abstractmethod
    def to_host(self, array: Any) -> Any:
        """Return an array of the device as a NumPy array; other values as they are."""
