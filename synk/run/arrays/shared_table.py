"""The master's record of which shared variables have travelled, that is, were sent to the workers.

Each gets a number, its identity, by which messages name it. Its value is sent once, with the first function
or collective that uses it, and again only by `SharedTable.resend`.

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
from synk.run.arrays.per_rank import LEFT, PerRank, State, left_cause, warn_of_left
from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.variables import RankVariables
from synk.values import messages
from synk.values.by_value import dumps


class SharedTable:
    """The master's record of which shared variables were sent to the workers.

    ``post(message)`` sends a message to all workers at once; ``release(message)`` sends it later, with
    others, and may be called anywhere, also in a finalizer. ``per_rank`` is notified when the script sets a
    variable, and of variables that were per rank in a former run. ``to_host`` copies values from rank 0's
    device, in any thread; it is None if ranks compute on cores.
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
        """Return the identity of one variable, as `identify_all` does."""
        known = self._identities.get(id(variable))
        return self.identify_all([variable])[0] if known is None else known

    def identify_read(self, variables: Sequence[SharedVariable]) -> tuple[int, ...]:
        """Return the identities of variables whose present values will be read, as `identify_all` does.

        Warns of variables that were per rank in a closed run, so that only rank 0's value is left.
        """
        if self._ranks.n_ranks > 1:
            warn_of_left(variables)  # only of new ones: sending a variable drops the note of the closed run
        return self.identify_all(variables)

    def known(self, variable: SharedVariable) -> int | None:
        """Return the variable's identity, or None if it was not sent to the workers yet."""
        return self._identities.get(id(variable))

    def identify_all(self, variables: Sequence[SharedVariable]) -> tuple[int, ...]:
        """Return the identities of variables; those that the workers lack are sent, in one message.

        Raises TypeError if one is not a shared variable, or its value cannot be pickled; then none was sent.
        """
        new = {id(variable): variable for variable in variables if id(variable) not in self._identities}
        for variable in new.values():
            if not isinstance(variable, SharedVariable):
                raise TypeError(f"{variable!r} is not a shared variable")
        self._send(dict(enumerate(new.values(), self._last + 1)))
        return tuple([self._identities[id(variable)] for variable in variables])

    def _send(self, new: dict[int, SharedVariable]) -> None:
        """Send variables, given by their new identities, to the workers, and record them here."""
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
        """Move the note that a variable was per rank in a closed run from its container to the record."""
        since = left_cause(variable)
        if since is not None:
            self._per_rank.note_left(identity, since)
        forget_left(variable.container)

    def _adopt(self, identity: int, variable: SharedVariable) -> None:
        """Adapt the variable's container, so that the script reads and sets its value as the run needs it."""
        several = self._ranks.n_ranks > 1
        if several or self._on_device:
            note_set = partial(self._per_rank.note_set, identity) if several else None
            adopt(variable.container, self._to_host, note_set)

    def adopt_all(self) -> None:
        """Do `_adopt` for all variables again, after a restart with more or fewer ranks."""
        for identity, variable in self._alive().items():
            self._adopt(identity, variable)

    def _post_values(self, variables: dict[int, SharedVariable]) -> None:
        """Send variables with their values to all workers; raise TypeError if one cannot be pickled."""
        if self._ranks.n_ranks == 1 or not variables:
            return
        types: dict[Any, Any] = {}
        shares = [self._share(*entry) for entry in variables.items()]
        # Variables of equal types get the same type object, which is pickled once.
        shares = [share._replace(type=types.setdefault(share.type, share.type)) for share in shares]
        try:
            self._post(messages.Several(tuple(shares)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            names = ", ".join(describe(variables[share.identity]) for share in shares if not _travels(share))
            raise TypeError(
                f"the value of shared variable {names} cannot travel to the workers: {error}"
            ) from error

    def _share(self, identity: int, variable: SharedVariable) -> messages.Share:
        """Return the message that sends a variable with rank 0's present value, not a copy of it."""
        value = self._to_host(variable.container.storage[0])
        return messages.Share(identity, type(variable), variable.type, variable.name, value)

    def resend(self, variables: Sequence[SharedVariable]) -> None:
        """Send the master's present values again, replacing those of the workers."""
        self._post_values(dict(zip(self.identify_all(variables), variables, strict=True)))

    def shares(self) -> list[messages.Share]:
        """Return the messages that send every variable, with rank 0's present values, not copies of them."""
        return [self._share(identity, variable) for identity, variable in self._alive().items()]

    def _alive(self) -> dict[int, SharedVariable]:
        """Return the variables that were sent and still exist, by identity."""
        references = self._references.copy()  # a finalizer may change it at any moment
        alive = {identity: reference() for identity, reference in references.items()}
        return {identity: variable for identity, variable in alive.items() if variable is not None}

    @contextmanager
    def held(self) -> Iterator[tuple[int, ...]]:
        """Yield the identities of all variables; none of them can be deleted inside this context."""
        alive = self._alive()
        yield tuple(alive)
        del alive

    def _forget(self, key: int, identity: int) -> None:
        """Drop a deleted variable on all ranks; ``key`` was its `id`."""
        self._identities.pop(key, None)
        self._references.pop(identity, None)
        self._own.drop(identity)
        self._release(messages.Unshare(identity))

    def close(self, per_rank: State) -> None:
        """Make all variables plain PyTensor ones again; those in ``per_rank`` keep a note of the cause."""
        for identity, variable in self._alive().items():
            since = per_rank.get(identity)
            lost = since is not None and (self._ranks.n_ranks > 1 or since.kind == LEFT)
            give_back(variable.container, since.what if since is not None and lost else None)


def _travels(share: messages.Share) -> bool:
    """Tell whether one variable can be pickled, to find the culprit after pickling several has failed."""
    try:
        dumps(share, lambda buffer: None)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True
