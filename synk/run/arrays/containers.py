"""Show the script the values of a shared variable while a run has it.

    v.get_value() -> value, on the host, wherever programs left it
    v.set_value() -> value: rank 0's alone; where there are other ranks, the variable is per rank from then
                     on, which is told once

Updates and collectives write to the storage and do not pass here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from copyreg import _reconstructor as _new  # type: ignore[attr-defined]  # pickles need no synk to be read
from typing import Any

from pytensor.link.basic import Container

from synk.values.errors import SynkWarning

OWN = ("to_host", "note_set", "warned", "left")  # attributes that a plain container does not have


class AdoptedContainer(Container):
    """The container of a variable that takes part in a run; ``to_host`` is that of rank 0's device.

    Copies of it, pickled ones too, are plain containers with the value on the host.
    """

    to_host: Callable[[Any], Any]

    @property
    def value(self) -> Any:
        """The value on the host: itself if it is there, else a copy, even where a view is asked for."""
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
        plain = Container.__new__(Container)
        vars(plain).update({name: x for name, x in vars(self).items() if name not in OWN})
        value = self.value
        if value is not self.storage[0]:
            plain.storage = [value]
        return plain


class TravelledContainer(AdoptedContainer):
    """The container of a variable that the workers have, too: they do not see what is set here.

    ``note_set()`` is called before a value is set.
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
    """Show the script a variable as one of a run.

    ``note_set()`` is called when the script sets a value; it is None where there are no other ranks.
    """
    vars(container)["to_host"] = to_host
    if note_set is not None:
        vars(container)["note_set"] = note_set
    container.__class__ = AdoptedContainer if note_set is None else TravelledContainer


def give_back(container: Container, since: str | None = None) -> None:
    """Let a variable be a plain PyTensor one again; its value is on the host by then.

    If it was per rank, ``since`` says what has made it so, and is kept beside rank 0's value for `left_of`.
    """
    container.__class__ = Container
    for name in OWN:
        vars(container).pop(name, None)
    if since is not None:
        vars(container)["left"] = since, container.storage[0]


def left_of(container: Container) -> str | None:
    """Return the cause that had made a variable per rank, if its value is one of a run that is closed."""
    since, value = vars(container).get("left", (None, None))
    return since if value is container.storage[0] else None


def forget_left(container: Container) -> None:
    """Drop what `left_of` returns: the run that has the variable knows it."""
    vars(container).pop("left", None)
