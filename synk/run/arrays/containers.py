"""Containers of shared variables, through which the script reads and sets values during a run.

    v.get_value() -> rank 0's value, on the host, even if programs left it on a device
    v.set_value() -> sets rank 0's value only; if there are other ranks, the variable is per rank from then
                     on, and the first such call warns

Updates and collectives write to the container's storage directly, without the properties defined here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from copyreg import _reconstructor as _new  # type: ignore[attr-defined]  # pickles need no synk to be read
from typing import Any

from pytensor.link.basic import Container

from synk.values.errors import SynkWarning

OWN = ("to_host", "note_set", "warned", "left")  # the attributes that PyTensor's own containers do not have


class AdoptedContainer(Container):
    """The container of a shared variable that takes part in a run; ``to_host`` is rank 0's `Device.to_host`.

    Copying or pickling it gives a plain PyTensor container with the value on the host.
    """

    to_host: Callable[[Any], Any]

    @property
    def value(self) -> Any:
        """The value on the host: the array itself if it is there, else a copy, even with ``borrow=True``."""
        return self.to_host(self.storage[0])

    @value.setter
    def value(self, new: Any) -> None:
        Container.value.fset(self, new)

    data = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Container:
        return deepcopy(self._plain(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (Container, object, None), vars(self._plain())

    def _plain(self) -> Container:
        """Return a plain PyTensor container with the same value, on the host."""
        plain = Container.__new__(Container)
        vars(plain).update({name: x for name, x in vars(self).items() if name not in OWN})
        value = self.value
        if value is not self.storage[0]:
            plain.storage = [value]
        return plain


class TravelledContainer(AdoptedContainer):
    """The container of a shared variable that has been sent to workers, which do not see a value set here.

    ``note_set()`` is called before the script sets a value.
    """

    note_set: Callable[[], None]
    warned = False

    @property
    def value(self) -> Any:
        return self.to_host(self.storage[0])

    @value.setter
    def value(self, new: Any) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"set_value of {self.name or 'a shared variable'!r} changed rank 0 only: the other ranks "
                "have a value of their own; synk.broadcast(variable, value) sets it everywhere",
                SynkWarning,
                stacklevel=3,
            )
        self.note_set()
        Container.value.fset(self, new)

    data = value


def adopt(
    container: Container, to_host: Callable[[Any], Any], note_set: Callable[[], None] | None = None
) -> None:
    """Make a plain container an `AdoptedContainer`, or with ``note_set`` a `TravelledContainer`.

    ``note_set()`` is called when the script sets a value; it is None if the run has one rank.
    """
    vars(container)["to_host"] = to_host
    if note_set is not None:
        vars(container)["note_set"] = note_set
    container.__class__ = AdoptedContainer if note_set is None else TravelledContainer


def give_back(container: Container, since: str | None = None) -> None:
    """Make the container a plain PyTensor one again, at the end of a run; its value must be on the host.

    If the variable was per rank, ``since`` names the cause. It is kept together with rank 0's value, so that
    `left_of` can tell a later run of it.
    """
    container.__class__ = Container
    for name in OWN:
        vars(container).pop(name, None)
    if since is not None:
        vars(container)["left"] = since, container.storage[0]


def left_of(container: Container) -> str | None:
    """Return why the variable was per rank in a closed run; None if it was not, or was set since."""
    since, value = vars(container).get("left", (None, None))
    return since if value is container.storage[0] else None


def forget_left(container: Container) -> None:
    """Drop what `left_of` returns, once the record of a new run has it."""
    vars(container).pop("left", None)
