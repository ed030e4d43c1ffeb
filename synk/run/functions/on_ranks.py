"""Keep an object of Python on every rank, and call it there.

    synk.on_ranks(make, *arguments) -> MakeStep: make(rank, *arguments) on every rank
    OnRanks(*arguments)             -> CallStep: each rank's object is called -> results, in rank order

The arguments are pickled separately and sent as bytes in the command, so that a rank that does not find a
name in a module can say so in its reply. Shared variables that the objects may change, through functions or
because they are listed in ``changes``, are per rank after each call.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from pytensor.compile.sharedvalue import SharedVariable

from synk.run.arrays.data import Data
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import Effect, is_tracked
from synk.run.functions.argument_pickler import ArgumentPickler
from synk.run.functions.graph_function import GraphFunction
from synk.run.rank.failures import shorten
from synk.run.rank.objects import CallStep, MakeStep
from synk.values import messages
from synk.values.by_value import Code
from synk.values.errors import SynkStateError
from synk.values.messages import Step

Returned = TypeVar("Returned")


class OnRanks(Generic[Returned]):
    """An object on every rank, made by `synk.on_ranks`; a call calls all, and returns their results.

    See Also
    --------
    synk.on_ranks : makes it.

    Examples
    --------
    >>> ranks = synk.on_ranks(lambda rank: lambda: rank)
    >>> ranks()
    [0, 1]
    >>> ranks.close()
    """

    def __init__(
        self,
        owner: Owner,
        number: int,
        make: Callable[..., Callable[..., Returned]],
        arguments: tuple[Any, ...],
        changes: Iterable[Any] = (),
    ):
        self._owner = owner
        self._number = number
        self._label = getattr(make, "__qualname__", repr(make))
        self._referenced: list[Any] = []  # functions, variables and Data that were sent: they must stay alive
        self._changes = _listed(changes)
        with owner.turn(self._label):
            payload, code = self._pickled((make, arguments), also_indirectly=True)
            # The script's code that the ranks have: of the object itself, and of functions that it calls.
            self._codes = [code, *(one.code for one in self._referenced if isinstance(one, GraphFunction))]
            self._finalizer = weakref.finalize(self, owner.functions.drop_object, number)
            self._finalizer.atexit = False
            self._run(MakeStep(number, payload, self._array_refs()))

    def __call__(self, *arguments: Any) -> list[Returned]:
        """Call the object of every rank with the same arguments; return the results, in rank order.

        Raises
        ------
        RemoteError
            If an object raised. The run stays usable, and so do the objects.
        SynkStateError
            If a `restart` has made new workers, which do not have the object; or if the script has since
            redefined code that was sent.
        WorkerDied
            If a worker died. The run is broken.
        """
        try:
            return self._call(arguments)
        except Exception as error:
            shorten(error)
            raise

    def _call(self, arguments: tuple[Any, ...]) -> list[Returned]:
        with self._owner.turn(self._label):
            if any(code.has_changed() for code in self._codes):
                for code in self._codes:
                    self._owner.check_imported(code.modules, also_indirectly=True)
                raise SynkStateError(
                    f"{self._label}, or what it reads, was defined again since the ranks have it: "
                    "synk.on_ranks makes another"
                )
            payload, _ = self._pickled(arguments)
            return list(self._run(CallStep(self._number, payload, self._array_refs())))

    def close(self) -> None:
        """Drop the objects on the ranks now, instead of when Python deletes this object."""
        self._finalizer()

    def _run(self, step: Step) -> Any:
        """Run a step, and record the variables that the objects may change as per rank."""
        owner = self._owner
        changed = set(owner.memory.shared.identify_all([one for one in self._changes if is_tracked(one)]))
        for one in self._referenced:
            if isinstance(one, GraphFunction):
                changed.update(one.updated())
        since = f"synk.on_ranks, where {self._label} may change it"
        effects = [Effect(leaves_per_rank=tuple(changed), since=since)]
        owner.memory.lengths.forget(changed)
        owner.memory.shared_storage.separate(changed)
        for data in (one for one in self._referenced if isinstance(one, Data)):
            data.note_written()
        try:
            (results,) = owner.run((step,))
            owner.memory.per_rank.now = owner.memory.per_rank.after(effects)
        except BaseException:
            owner.memory.per_rank.note_failed(effects)
            raise
        return results

    def _array_refs(self) -> tuple[messages.ArrayRef, ...]:
        """Return references to the arrays of all `Data` that the objects or their arguments use."""
        return tuple([one.ref() for one in self._referenced if isinstance(one, Data)])

    def _pickled(self, what: Any, also_indirectly: bool = False) -> tuple[bytes, Code]:
        """Pickle ``what``; return the bytes, and the script's code that they contain.

        Functions found in it are compiled on the ranks first. Functions, shared variables and `Data` are kept
        alive.
        """
        file = io.BytesIO()
        pickler = ArgumentPickler(file, self._owner, self._changes)
        try:
            pickler.dump(what)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"{self._label} cannot be sent to the ranks with what it holds and reads: {error}"
                f"{pickler.code.unsendable()}; make that "
                "on the ranks, or define it in a module"
            ) from error
        pickler.check_read(self._label)
        self._owner.check_imported(pickler.code.modules, also_indirectly)
        self._owner.functions.compile(
            [(one.ready(), 1) for one in pickler.found if isinstance(one, GraphFunction)]
        )
        self._referenced += pickler.newly_found(self._referenced)
        return file.getvalue(), pickler.code


def _listed(changes: Any) -> list[Any]:
    """Return ``changes`` as a list; raise TypeError if something in it is no shared variable."""
    listed = [changes] if isinstance(changes, SharedVariable) else list(changes)
    for one in listed:
        if not isinstance(one, SharedVariable):
            raise TypeError(f"changes must list shared variables, got {one!r}")
    return listed
