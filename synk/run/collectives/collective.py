"""The base class of collectives: it checks the arguments on the master and prepares the step of all ranks.

    synk.all_reduce(v, "max") -> AllReduce(v, "max") -> prepare -> AllReduceStep.run, on every rank -> finish

To add a collective, write a subclass of `Collective` and a `Step`, and make the public function (the verb) in
``synk/__init__.py``. `synk.sequence` accepts it without further changes, and ``help`` of the verb shows the
docstring of the class.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.type import DenseTensorType

from synk.exact.run_values import describe
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import OWN, Effect, is_tracked
from synk.run.functions.prepared import PreparedStep
from synk.run.rank.rank import Rank
from synk.transport.comm import SharedArrays

Returned = TypeVar("Returned", covariant=True)


class Collective(ABC, Generic[Returned]):
    """One call of a collective: its shared variables and its options, checked as far as no run is needed.

    Subclasses accept ``nccl``, an option of Synkhronos, and ignore it: the device decides how arrays go. It
    is keyword-only, so that a positional argument too many is an error and not taken for it.
    """

    name: ClassVar[str]  # of the public function
    has_result = False  # whether the call returns a value; on the class: whether a call may do so
    takes_arrays_only = True  # whether random states and sparse matrices are refused
    # Whether all ranks have equal values afterwards (True) or values of their own (False); None if the
    # collective only reads the variables.
    leaves_equal: bool | None = None
    adds_up = False  # whether the result is the sum or the mean of the ranks' values
    leaves_kind = OWN  # how values differ if they are not left equal: the `Cause.kind` of the variables

    def __init__(self, shared_vars: Any):
        self._is_list = isinstance(shared_vars, list | tuple)
        self.variables = _listed(shared_vars)
        for variable in self.variables if self.takes_arrays_only else ():
            if not is_array(variable):
                raise TypeError(
                    f"shared variable {describe(variable)} is not an array: it is {variable.type}"
                )

    @classmethod
    def of(cls, args: Sequence[Any], keywords: Mapping[str, Any]) -> Self:
        """Return the collective with these arguments; a TypeError names the verb if they do not match it."""
        try:
            return cls(*args, **keywords)
        except TypeError:
            try:
                inspect.signature(cls).bind(*args, **keywords)
            except TypeError as unfit:
                raise TypeError(f"synk.{cls.name}{_plain_signature(cls)}: {unfit}") from None
            raise

    @abstractmethod
    def prepare(self, run: Owner) -> PreparedStep:
        """Check the arguments against the run, and return the step for a command of several steps."""

    def prepare_alone(self, run: Owner) -> list[PreparedStep]:
        """Return the steps for a command that consists of this collective only."""
        return [self.prepare(run)]

    def effect(self, run: Owner) -> Effect | None:
        """Return whether the variables are equal or per rank afterwards; None if they do not change."""
        if self.leaves_equal is None:
            return None
        changed = tuple([run.memory.shared.identify(one) for one in self.variables if is_tracked(one)])
        if self.leaves_equal:
            return Effect(leaves_equal=changed, replaces="" if self.adds_up else self.described())
        return Effect(leaves_per_rank=changed, since=self.described(), kind=self.leaves_kind)

    def described(self) -> str:
        """Return the name by which later errors say that this collective has left a variable per rank."""
        return f"synk.{self.name}"

    def identities(self, run: Owner) -> tuple[int, ...]:
        """Return the variables' identities, the numbers by which steps name them."""
        return run.memory.shared.identify_all(self.variables)

    def results(self, of_variables: Sequence[Any]) -> list[Any]:
        """Return a list with the one value of the verb: a tuple if the script gave a list of variables."""
        return [tuple(of_variables) if self._is_list else of_variables[0]]

    def check_rows(self, what: str) -> None:
        """Raise ValueError if a variable is 0-d; ``what`` names what it lacks, for the message."""
        for variable in self.variables:
            if variable.type.ndim == 0:
                raise ValueError(f"{describe(variable)} is 0-d, so it has no {what}")

    def check_free_rows(self, run: Owner) -> None:
        """Raise TypeError if the type of a variable fixes its number of rows."""
        for variable in self.variables:
            if run.n_ranks > 1 and variable.type.shape[0] is not None:
                raise TypeError(
                    f"{describe(variable)} has {variable.type.shape[0]} rows by its type, "
                    "so their number cannot change"
                )


def describe_verb(verb: Callable[..., Any], kind: type[Collective[Any]]) -> None:
    """Give the function ``verb`` the name, signature and docstring of the collective that it runs."""
    signature = inspect.signature(kind)
    returned = "Any" if kind.has_result else "None"
    verb.__name__ = verb.__qualname__ = kind.name
    verb.__doc__ = kind.__doc__
    verb.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    verb.__annotations__ = {**annotations, "return": returned}
    verb.collective = kind  # type: ignore[attr-defined]


def _plain_signature(kind: type[Collective[Any]]) -> inspect.Signature:
    """Return the signature of a collective's arguments without annotations, for error messages."""
    named = inspect.signature(kind).parameters.values()
    return inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in named])


def checked_rank(rank: Any, run: Owner) -> int:
    """Return ``rank`` as an int; raise TypeError or IndexError if the run has no such rank."""
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
        raise TypeError(f"rank={rank!r} is not an integer")
    if not 0 <= rank < run.n_ranks:
        raise IndexError(f"rank={rank} is out of range: the run has {run.n_ranks} ranks")
    return int(rank)


def is_array(variable: Any) -> bool:
    """Return whether values of a shared variable are arrays, not random states or sparse matrices."""
    return isinstance(variable.type, DenseTensorType)


def for_each(
    rank: Rank,
    variables: Sequence[int],
    kind: str,
    op: str,
    do: Callable[[Any, SharedArrays | None], Any],
    shapes: bool = False,
) -> list[Any]:
    """Return ``do(value, shared)`` for each variable, where ``value`` is this rank's.

    ``shared`` are the arrays of all ranks if they are in shared memory, else None. The ranks meet once for
    all variables, not once for each: the other arguments are those of `Communicator.at_once`.
    """
    shared = [rank.variables.shared_arrays(variable) for variable in variables]
    with rank.communicator.at_once(kind, op, shared, shapes):
        return [do(rank.value(variable), known) for variable, known in zip(variables, shared, strict=True)]


def replace_all(rank: Rank, variables: Sequence[int], values: Sequence[Any]) -> None:
    """Assign new values to a rank's shared variables."""
    for variable, value in zip(variables, values, strict=True):
        rank.variables.assign(variable, value)


def module_of(array: Any, rank: Rank) -> Any:
    """Return the array module for an array of a rank: NumPy on the host, else that of the rank's device."""
    return np if isinstance(array, np.ndarray) else rank.device.xp


def _listed(shared_vars: Any) -> list[Any]:
    """Return one shared variable, or a list of them, as a list; raise if one is given twice or is none."""
    variables = list(shared_vars) if isinstance(shared_vars, list | tuple) else [shared_vars]
    seen = set()
    for variable in variables:
        if not isinstance(variable, SharedVariable):
            raise TypeError(f"expected shared variables, got {variable!r}")
        if id(variable) in seen:
            raise ValueError(f"shared variable {describe(variable)} is given twice")
        seen.add(id(variable))
    return variables
