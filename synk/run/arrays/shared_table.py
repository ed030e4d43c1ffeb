"""The master's record of which shared variables have travelled to the workers.

They travel by identity: the value once, with the first function or collective that uses them, and never again
unless asked for.

    SharedTable.identify (master) -> Share -> RankVariables.add (worker)
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synk.exact.run_values import describe
from synk.run.arrays.containers import adopt, forget_left, give_back
from synk.run.arrays.per_rank import LEFT, PerRank, State, left_since, warn_of_left
from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.variables import RankVariables
from synk.values import messages
from synk.values.by_value import dumps


class SharedTable:
    """The master's record of which shared variables have travelled.

    ``post(message)`` reaches all workers, ``release(message)`` does so too, later, from wherever it is
    called: with other messages. ``per_rank`` is told when the script sets a variable on rank 0 of several,
    and what a run before has left. By ``to_host`` it reads values that programs left on the device of rank 0,
    on any thread.
    """

    def __init__(
        self,
        post: Callable[..., None],
        release: Callable[[Any], None],
        per_rank: PerRank,
        own: RankVariables,
        ranks: RanksByMachine,
        to_host: Callable[[Any], Any] | None = None,
    ):
        self._post = post
        self._release = release
        self._per_rank = per_rank
        self._own = own
        self._ranks = ranks
        self._to_host = to_host or (lambda value: value)
        self._on_device = to_host is not None
        self._identities: dict[int, int] = {}  # id(variable) -> identity
        self._references: dict[int, weakref.ref[SharedVariable]] = {}
        self._last = 0

    def identify(self, variable: SharedVariable) -> int:
        """Return the variable's identity, as `identify_all` does."""
        known = self._identities.get(id(variable))
        return self.identify_all([variable])[0] if known is None else known

    def identify_read(self, variables: Sequence[SharedVariable]) -> tuple[int, ...]:
        """Return the identities of variables whose present values are read, as `identify_all` does.

        Warns of those that were per rank in a run that is closed.
        """
        if self._ranks.n_ranks > 1:
            warn_of_left(variables)  # those that have travelled are none
        return self.identify_all(variables)

    def known(self, variable: SharedVariable) -> int | None:
        """Return the variable's identity if it has travelled."""
        return self._identities.get(id(variable))

    def identify_all(self, variables: Sequence[SharedVariable]) -> tuple[int, ...]:
        """Return the identities of variables, sending those that are new to the workers, in one message.

        Raises TypeError if one is not a shared variable, or its value cannot travel; none has travelled then.
        """
        new = {id(variable): variable for variable in variables if id(variable) not in self._identities}
        for variable in new.values():
            if not isinstance(variable, SharedVariable):
                raise TypeError(f"{variable!r} is not a shared variable")
        self._send(dict(enumerate(new.values(), self._last + 1)))
        return tuple([self._identities[id(variable)] for variable in variables])

    def _send(self, new: dict[int, SharedVariable]) -> None:
        self._last += len(new)
        self._post_values(new)
        for identity, variable in new.items():
            self._own.adopt(identity, variable)
            self._identities[id(variable)] = identity
            self._references[identity] = weakref.ref(variable)
            weakref.finalize(variable, self._forget, id(variable), identity).atexit = False
            self._take_left(identity, variable)
            self._adopt(identity, variable)

    def _take_left(self, identity: int, variable: SharedVariable) -> None:
        """Note what a run before has left of a variable; the container knows it until values change."""
        since = left_since(variable)
        if since is not None:
            self._per_rank.note_left(identity, since)
        forget_left(variable.container)

    def _adopt(self, identity: int, variable: SharedVariable) -> None:
        """Let a variable take part in a run of several ranks, or one on a device."""
        several = self._ranks.n_ranks > 1
        if several or self._on_device:
            note_set = partial(self._per_rank.note_set, identity) if several else None
            adopt(variable.container, self._to_host, note_set)

    def adopt_all(self) -> None:
        """Let all variables take part in a run that has become one of more or fewer ranks."""
        for identity, variable in self._alive().items():
            self._adopt(identity, variable)

    def _post_values(self, variables: dict[int, SharedVariable]) -> None:
        if self._ranks.n_ranks == 1 or not variables:
            return
        types: dict[Any, Any] = {}
        shares = [self._share(*entry) for entry in variables.items()]
        # Equal types are pickled once.
        shares = [share._replace(type=types.setdefault(share.type, share.type)) for share in shares]
        try:
            self._post(messages.Several(tuple(shares)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            names = ", ".join(describe(variables[share.identity]) for share in shares if not _travels(share))
            raise TypeError(
                f"the value of shared variable {names} cannot travel to the workers: {error}"
            ) from error

    def _share(self, identity: int, variable: SharedVariable) -> messages.Share:
        value = self._to_host(variable.container.storage[0])
        return messages.Share(identity, type(variable), variable.type, variable.name, value)

    def resend(self, variables: Sequence[SharedVariable]) -> None:
        """Send the master's present values again, replacing those of the workers."""
        self._post_values(dict(zip(self.identify_all(variables), variables, strict=True)))

    def shares(self) -> list[messages.Share]:
        """Return the messages that tell of every variable, with rank 0's present value itself."""
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

    def close(self, per_rank: State) -> None:
        """Let the variables be plain PyTensor ones again, which know what they were by ``per_rank``."""
        for identity, variable in self._alive().items():
            since = per_rank.get(identity)
            lost = since is not None and (self._ranks.n_ranks > 1 or since.kind == LEFT)
            give_back(variable.container, since.what if since is not None and lost else None)


def _travels(share: messages.Share) -> bool:
    """Tell whether a variable can be pickled: asked when several could not."""
    try:
        dumps(share, lambda buffer: None)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True
