"""Keep an object of Python on every rank, and call it there.

    synk.on_ranks(make, *arguments) -> MakeStep: make(rank, *arguments) on every rank
    OnRanks(*arguments)             -> CallStep: each rank's object is called -> results, in rank order

The arguments are pickled separately and sent as bytes in the command, so that a rank that does not find a
name in a module can say so in its reply. Functions, shared variables and `Data` among the arguments are
replaced by the rank's own. Code that reads them as globals, attributes or closures is refused, as on rank 0
it would read the script's objects instead. Shared variables that the objects may change, through functions or
because they are listed in ``changes``, are per rank after each call.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synk.exact.run_values import copy_of, describe
from synk.run.arrays.data import Data
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import Effect, is_tracked
from synk.run.arrays.variables import RankVariables
from synk.run.functions.function import Function
from synk.run.functions.graph_function import GraphFunction
from synk.run.rank.compiled_calls import BoundFunction
from synk.run.rank.program import RankProgram
from synk.run.rank.rank import Rank
from synk.values import messages
from synk.values.by_value import CODE, UNKNOWN, Code, CodePickler
from synk.values.errors import SynkStateError
from synk.values.messages import Step


class OnRanks:
    """An object on every rank, made by `synk.on_ranks`; a call calls all, and returns their results."""

    def __init__(
        self,
        owner: Owner,
        number: int,
        make: Callable[..., Any],
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

    def __call__(self, *arguments: Any) -> list[Any]:
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
        pickler = _Pickler(file, self._owner, self._changes)
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


class _Pickler(CodePickler):
    """A pickler that writes functions, shared variables and Data as numbers; each rank finds its own."""

    def __init__(self, file: Any, owner: Owner, changes: list[Any]):
        super().__init__(file)
        self.found: list[Any] = []
        self._owner, self._changes = owner, changes
        self._read: list[tuple[str, Any]] = []  # what pickled code reads: (description, value)

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, CODE) and reduced is not NotImplemented and len(reduced) == 6:
            self._read += _read_by(obj, *reduced[2][-1])
        return reduced

    def check_read(self, label: str) -> None:
        """Raise TypeError if code reads a function, shared variable or Data that is no argument."""
        for what, value in self._read if self.found else ():
            finder = _Finder(io.BytesIO(), self._owner, self._changes)
            finder.dump(value)
            if finder.found:
                raise TypeError(
                    f"{label} reads {what}, which has {finder.found[0]!r}: on rank 0 that is the script's "
                    "own, on the others something else; pass it as an argument, "
                    "synk.on_ranks(make, *arguments)"
                )

    def newly_found(self, before: list[Any]) -> list[Any]:
        """Return the functions, variables and Data that were pickled, each once, without those ``before``."""
        known = set(map(id, before))
        return [one for key, one in {id(one): one for one in self.found}.items() if key not in known]

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, GraphFunction):
            named: Any = "function", value.ready()
        elif isinstance(value, Data):
            named = "array", value.ref()
        elif isinstance(value, SharedVariable):
            changes = any(value is one for one in self._changes)
            (identity,) = self._owner.memory.shared.identify_read([value])
            named = "variable", (identity, changes)
        elif isinstance(value, Function):
            raise TypeError(f"{value!r} is a sequence, in which the ranks meet; give its functions")
        else:
            return None
        self.found.append(value)
        return named


class _Finder(_Pickler):
    """A pickler that only finds functions, shared variables and Data in a value; its output is not used.

    It does not look into Python functions and classes.
    """

    def reducer_override(self, obj: Any) -> Any:
        return (hash, (0,)) if isinstance(obj, CODE) else NotImplemented


def _read_by(code: Any, attributes: dict[str, Any], state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (description, value) for each attribute, global, closure and default of a function or class."""
    for name, value in attributes.items():
        yield f"attribute {name!r} of {code.__qualname__}", value
    for name, value in state.get("__globals__", {}).items():
        yield f"global {name!r}", value
    if isinstance(code, FunctionType):
        for name, value in zip(code.__code__.co_freevars, code.__closure__ or (), strict=True):
            yield f"{name!r} of the function around it", value
        yield f"a default of {code.__qualname__}", (code.__defaults__, code.__kwdefaults__)


class _Unpickler(pickle.Unpickler):
    """An unpickler that finds this rank's functions, shared variables and arrays by their numbers."""

    def __init__(self, payload: bytes, rank: Rank):
        super().__init__(io.BytesIO(payload))
        self._rank = rank

    def persistent_load(self, named: Any) -> Any:
        kind, what = named
        if kind == "function":
            return RankFunction(self._rank.program(what))
        if kind == "variable":
            return RankVariable(self._rank.variables, *what)
        array = self._rank.segments.array(what)
        # On several machines it is read-only: a write on one would not reach the others.
        array.flags.writeable &= self._rank.peers.machine is None
        return array

    def load(self) -> Any:
        try:
            return super().load()
        except (AttributeError, ImportError) as error:
            error.add_note(UNKNOWN)
            raise


class RankFunction:
    """A function as an object of `synk.on_ranks` calls it, on one rank alone.

    It takes all inputs as wholes, and returns a list of all outputs.
    """

    def __init__(self, program: RankProgram):
        self._program = program

    def __call__(self, *arrays: Any) -> list[Any]:
        return list(self.bound(*arrays)())

    def bound(self, *arrays: Any) -> BoundFunction:
        """Return a function without arguments that runs on these arrays, with their values at each call."""
        return self._program.alone(arrays)


class RankVariable:
    """One rank's copy of a shared variable; it can be set only if ``changes`` of `on_ranks` lists it."""

    def __init__(self, variables: RankVariables, identity: int, changes: bool):
        self._variables, self._identity, self._changes = variables, identity, changes
        self.name = variables[identity].name

    def get_value(self, borrow: bool = False) -> Any:
        """Return a copy of the rank's value, or with ``borrow`` the array itself if it is on the host.

        The array is read-only unless ``changes`` lists the variable.
        """
        value = self._variables.on_host(self._identity)
        if not borrow:
            return copy_of(value)
        if isinstance(value, np.ndarray) and not self._changes:
            value = value.view()
            value.flags.writeable = False
        return value

    def set_value(self, value: Any) -> None:
        """Set the variable on this rank to a copy of ``value``.

        Raises TypeError if the value does not fit the variable, or ``changes`` does not list the variable.
        """
        variable = self._variables[self._identity]
        if not self._changes:
            called = variable.name or "variable"
            raise TypeError(
                f"{describe(variable)} was given to synk.on_ranks to be read, and a rank that changes it "
                f"makes it differ from the others'; say changes=[{called}]"
            )
        self._variables.assign(self._identity, copy_of(variable.type.filter(value, allow_downcast=None)))


def _listed(changes: Any) -> list[Any]:
    """Return ``changes`` as a list; raise TypeError if something in it is no shared variable."""
    listed = [changes] if isinstance(changes, SharedVariable) else list(changes)
    for one in listed:
        if not isinstance(one, SharedVariable):
            raise TypeError(f"changes must list shared variables, got {one!r}")
    return listed


@dataclass(slots=True)
class MakeStep(Step):
    """Make an object on the rank, and keep it there for `CallStep`."""

    number: int
    payload: bytes  # pickled: the function that makes the object, and its arguments
    arrays: tuple[messages.ArrayRef, ...]  # of the Data that objects read; other machines need copies

    phase = messages.COMPUTING

    def run(self, rank: Rank) -> None:
        make, arguments = _Unpickler(self.payload, rank).load()
        rank.objects[self.number] = make(rank.rank, *arguments)


@dataclass(slots=True)
class CallStep(Step):
    """Call the object that a `MakeStep` has made on the rank."""

    number: int
    payload: bytes
    arrays: tuple[messages.ArrayRef, ...]

    phase = messages.COMPUTING

    def run(self, rank: Rank) -> Any:
        if self.number not in rank.objects:
            raise SynkStateError("the ranks do not have this object any more: synk.on_ranks makes another")
        return rank.objects[self.number](*_Unpickler(self.payload, rank).load())
