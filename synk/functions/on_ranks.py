"""Keep an object of Python on every rank, and call it there.

    synk.on_ranks(make, *arguments) -> MakeStep: make(rank, *arguments) on every rank
    OnRanks(*arguments)             -> CallStep: each rank's object is called -> results, in rank order

What travels is pickled by itself, so that a rank that does not know a name says so in its reply. Functions
and `Data` among it arrive as what the rank has of them.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synk.arrays.data import Data
from synk.arrays.owner import Owner
from synk.functions.function import Function
from synk.functions.graph_function import GraphFunction
from synk.rank.calling import Bound
from synk.rank.program import RankProgram
from synk.rank.rank import Rank
from synk.values import messages
from synk.values.by_value import UNKNOWN, Code, CodePickler
from synk.values.errors import SynkStateError
from synk.values.messages import Step


class OnRanks:
    """An object on every rank, made by `synk.on_ranks`: a call calls each, and returns what each returns."""

    def __init__(self, owner: Owner, number: int, make: Callable[..., Any], arguments: tuple[Any, ...]):
        self._owner = owner
        self._number = number
        self._label = getattr(make, "__qualname__", repr(make))
        self._kept: list[Any] = []  # functions and Data that the objects refer to
        with owner.turn(self._label):
            payload, self._code = self._travelling((make, arguments), also_indirectly=True)
            self._finalizer = weakref.finalize(self, owner.drop_object, number)
            self._finalizer.atexit = False
            owner.run((MakeStep(number, payload, self._arrays()),))

    def __call__(self, *arguments: Any) -> list[Any]:
        """Call the object of every rank with the same arguments; return the results, in rank order.

        Raises
        ------
        RemoteError
            If an object raised. The run stays usable, and so do the objects.
        SynkStateError
            If `restart` has made new workers since, which do not have the object; or if the script has
            defined anew what was sent.
        WorkerDied
            If a worker died. The run is broken.
        """
        with self._owner.turn(self._label):
            if self._code.has_changed():
                raise SynkStateError(
                    f"{self._label}, or what it reads, was defined again since the ranks have it: "
                    "synk.on_ranks makes another"
                )
            payload, _ = self._travelling(arguments)
            return list(self._owner.run((CallStep(self._number, payload, self._arrays()),))[0])

    def close(self) -> None:
        """Drop the objects now, even if something still refers to this; without it they go with this."""
        self._finalizer()

    def _arrays(self) -> tuple[messages.ArrayRef, ...]:
        """Return where the values of all `Data` are that the objects, or arguments, refer to."""
        return tuple([one.ref() for one in self._kept if isinstance(one, Data)])

    def _travelling(self, what: Any, also_indirectly: bool = False) -> tuple[bytes, Code]:
        file = io.BytesIO()
        pickler = _Pickler(file)
        try:
            pickler.dump(what)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"{self._label} cannot be sent to the ranks with what it holds and reads: {error}"
                f"{pickler.code.unsendable()}; make that "
                "on the ranks, or define it in a module"
            ) from error
        self._owner.check_imported(pickler.code.modules, also_indirectly)
        self._owner.compile([(one.ready(), 1) for one in pickler.met if isinstance(one, GraphFunction)])
        self._kept += pickler.met
        return file.getvalue(), pickler.code


class _Pickler(CodePickler):
    """Names functions and Data by their numbers."""

    def __init__(self, file: Any):
        super().__init__(file)
        self.met: list[Any] = []

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, GraphFunction):
            named: Any = "function", value.ready()
        elif isinstance(value, Data):
            named = "array", value.ref()
        elif isinstance(value, Function):
            raise TypeError(f"{value!r} is a sequence, in which the ranks meet; give its functions")
        else:
            return None
        self.met.append(value)
        return named


class _Unpickler(pickle.Unpickler):
    """Finds on a rank what is named by its number."""

    def __init__(self, payload: bytes, rank: Rank):
        super().__init__(io.BytesIO(payload))
        self._rank = rank

    def persistent_load(self, named: Any) -> Any:
        kind, what = named
        if kind == "function":
            return RankFunction(self._rank.program(what))
        array = self._rank.segments.array(what)
        # What one machine wrote there, the others would not see.
        array.flags.writeable &= self._rank.peers.machine is None
        return array

    def load(self) -> Any:
        try:
            return super().load()
        except (AttributeError, ImportError) as error:
            error.add_note(UNKNOWN)
            raise


class RankFunction:
    """A function on one rank alone: a call with all inputs, whole, returns a list of all outputs."""

    def __init__(self, program: RankProgram):
        self._program = program

    def __call__(self, *arrays: Any) -> list[Any]:
        return list(self.bound(*arrays)())

    def bound(self, *arrays: Any) -> Bound:
        """Return a function that takes nothing: a call on these very arrays, whatever they hold then."""
        return self._program.alone(arrays)


@dataclass(slots=True)
class MakeStep(Step):
    """Make an object, and keep it."""

    number: int
    payload: bytes
    arrays: tuple[messages.ArrayRef, ...]  # that the objects read

    phase = messages.COMPUTING

    def run(self, rank: Rank) -> None:
        make, arguments = _Unpickler(self.payload, rank).load()
        rank.objects[self.number] = make(rank.rank, *arguments)


@dataclass(slots=True)
class CallStep(Step):
    """Call an object that was made."""

    number: int
    payload: bytes
    arrays: tuple[messages.ArrayRef, ...]

    phase = messages.COMPUTING

    def run(self, rank: Rank) -> Any:
        if self.number not in rank.objects:
            raise SynkStateError("the ranks do not have this object any more: synk.on_ranks makes another")
        return rank.objects[self.number](*_Unpickler(self.payload, rank).load())
