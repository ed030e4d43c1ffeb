"""The master's record of which shared variables have travelled to the workers.

They travel by identity: the value once, with the first function or collective that uses them, and never again
unless asked for.

    SharedTable.identify (master) -> Share -> RankVariables.add (worker)

Imports ``errors``, ``messages`` and ``variables``.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.basic import Container

from synk import messages
from synk.errors import SynkWarning
from synk.variables import RankVariables, describe


class TravelledContainer(Container):
    """The container of a variable that the workers have, too.

    ``set_value`` goes through `value`; updates and collectives write to the storage and do
    not. So this sees just what the workers do not see.
    """

    warned = False

    @property
    def value(self) -> Any:
        return self.storage[0]

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
        Container.value.fset(self, new)

    data = value


class SharedTable:
    """The master's record of which shared variables have travelled.

    Parameters
    ----------
    post : callable
        ``post(message)`` reaches all workers.
    release : callable
        ``release(message)`` does so too, later, from wherever it is called.
    own : RankVariables
        Rank 0's.
    n_ranks : int
    """

    def __init__(
        self,
        post: Callable[..., None],
        release: Callable[[Any], None],
        own: RankVariables,
        n_ranks: int,
    ):
        self._post = post
        self._release = release
        self._own = own
        self._n_ranks = n_ranks
        self._identities: dict[int, int] = {}  # id(variable) -> identity
        self._references: dict[int, weakref.ref[SharedVariable]] = {}
        self._last = 0

    def identify(self, variable: SharedVariable) -> int:
        """Return the variable's identity, sending it to the workers if it is new.

        Raises
        ------
        TypeError
            If it is not a shared variable, or its value cannot travel.
        """
        if not isinstance(variable, SharedVariable):
            raise TypeError(f"{variable!r} is not a shared variable")
        known = self._identities.get(id(variable))
        return self._send(variable) if known is None else known

    def _send(self, variable: SharedVariable) -> int:
        identity = self._last = self._last + 1
        self._post_value(identity, variable)
        self._own.adopt(identity, variable)
        self._identities[id(variable)] = identity
        self._references[identity] = weakref.ref(variable)
        weakref.finalize(variable, self._forget, id(variable), identity).atexit = False
        if self._n_ranks > 1:
            variable.container.__class__ = TravelledContainer
        return identity

    def _post_value(self, identity: int, variable: SharedVariable) -> None:
        if self._n_ranks == 1:
            return
        try:
            self._post(self._share(identity, variable))
        except (TypeError, AttributeError) as error:
            raise TypeError(
                f"the value of shared variable {describe(variable)} cannot travel to the workers: {error}"
            ) from error

    @staticmethod
    def _share(identity: int, variable: SharedVariable) -> messages.Share:
        value = variable.container.storage[0]
        return messages.Share(identity, type(variable), variable.type, variable.name, value)

    def resend(self, identity: int) -> None:
        """Send the master's present value again, replacing those of the workers."""
        variable = self._references[identity]()
        assert variable is not None, "the caller holds it"
        self._post_value(identity, variable)

    def shares(self) -> list[messages.Share]:
        """Return what tells a new worker of every variable, with rank 0's present value itself."""
        return [self._share(identity, variable) for identity, variable in self._alive().items()]

    def _alive(self) -> dict[int, SharedVariable]:
        references = self._references.copy()  # a finalizer may change it at any moment
        alive = {identity: reference() for identity, reference in references.items()}
        return {identity: variable for identity, variable in alive.items() if variable is not None}

    @contextmanager
    def held(self) -> Iterator[tuple[int, ...]]:
        """Yield the identities of all variables, none of which is dropped meanwhile."""
        alive = self._alive()
        yield tuple(alive)
        del alive

    def _forget(self, key: int, identity: int) -> None:
        self._identities.pop(key, None)
        self._references.pop(identity, None)
        self._own.drop(identity)
        self._release(messages.Unshare(identity))

    def close(self) -> None:
        """Let the variables be plain PyTensor ones again."""
        for reference in self._references.values():
            variable = reference()
            if variable is not None:
                variable.container.__class__ = Container
                vars(variable.container).pop("warned", None)
