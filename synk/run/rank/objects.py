"""Make an object of Python on a rank, and call it, for `synk.on_ranks`.

    MakeStep -> rank.objects[number]; CallStep -> rank.objects[number](*arguments)

Arguments arrive pickled in the step, with numbers in the place of functions, shared variables and `Data`; the
rank replaces the numbers by its own `RankFunction`, `RankVariable` or array.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from synk.exact.run_values import copy_of, describe
from synk.run.arrays.variables import RankVariables
from synk.run.rank.compiled_calls import BoundFunction
from synk.run.rank.program import RankProgram
from synk.run.rank.rank import Rank
from synk.values import messages
from synk.values.by_value import UNKNOWN
from synk.values.errors import SynkStateError
from synk.values.messages import Step


class ArgumentUnpickler(pickle.Unpickler):
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


@dataclass(slots=True)
class MakeStep(Step):
    """Make an object on the rank, and keep it there for `CallStep`."""

    number: int
    payload: bytes  # pickled: the function that makes the object, and its arguments
    arrays: tuple[messages.ArrayRef, ...]  # of the Data that objects read; other machines need copies

    phase = messages.COMPUTING

    def run(self, rank: Rank) -> None:
        make, arguments = ArgumentUnpickler(self.payload, rank).load()
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
        return rank.objects[self.number](*ArgumentUnpickler(self.payload, rank).load())
