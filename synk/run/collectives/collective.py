"""One collective: what it takes, its check on the master, the step of all ranks, and what comes back.

    synk.all_reduce(v, "max") -> AllReduce(v, "max") -> prepare -> AllReduceStep.run, on every rank -> finish

To add one, write such a class and such a step, and make its verb in ``synk/__init__.py``. `sequence` takes
the verb from then on, and its page of help is the docstring of the class.
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
    """One collective with its arguments, which are checked when it is made, as far as they can be then.

    ``nccl``, a keyword of Synkhronos, is accepted and ignored: the device decides. By position it would take
    what is meant for a verb of more variables, or of values.
    """

    name: ClassVar[str]  # of the public verb
    has_result = False  # whether the verb returns something; of a class, whether it may
    takes_arrays_only = True  # random states and sparse matrices are refused
    leaves_equal: bool | None = None  # on all ranks, not per rank; None: the variables stay what they are
    adds_up = False  # whether parts of a sum are their sum afterwards, or its mean
    leaves_kind = OWN  # of what is not equal, as of `synk.run.arrays.per_rank.Since`

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
        """Return the collective of these arguments; of others than it takes, a TypeError names the verb."""
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
        """Check what depends on the run, and return the step of a command of several."""

    def prepare_alone(self, run: Owner) -> list[PreparedStep]:
        """Return the steps of a command of its own."""
        return [self.prepare(run)]

    def effect(self, run: Owner) -> Effect | None:
        """Return whether it leaves its variables equal on all ranks, or per rank."""
        if self.leaves_equal is None:
            return None
        changed = tuple([run.memory.shared.identify(one) for one in self.variables if is_tracked(one)])
        if self.leaves_equal:
            return Effect(leaves_equal=changed, replaces="" if self.adds_up else self.described())
        return Effect(leaves_per_rank=changed, since=self.described(), kind=self.leaves_kind)

    def described(self) -> str:
        """Return how errors name it that are raised because it has left variables per rank."""
        return f"synk.{self.name}"

    def identities(self, run: Owner) -> tuple[int, ...]:
        """Return the variables as steps name them."""
        return run.memory.shared.identify_all(self.variables)

    def results(self, of_variables: Sequence[Any]) -> list[Any]:
        """Return the only value of the verb, in a list: a tuple if a list of variables was given."""
        return [tuple(of_variables) if self._is_list else of_variables[0]]

    def check_rows(self, what: str) -> None:
        """Raise ValueError if a variable is 0-d; ``what`` says what it lacks then."""
        for variable in self.variables:
            if variable.type.ndim == 0:
                raise ValueError(f"{describe(variable)} is 0-d, so it has no {what}")

    def check_free_rows(self, run: Owner) -> None:
        """Raise TypeError if the number of rows of a variable is part of its type."""
        for variable in self.variables:
            if run.n_ranks > 1 and variable.type.shape[0] is not None:
                raise TypeError(
                    f"{describe(variable)} has {variable.type.shape[0]} rows by its type, "
                    "so their number cannot change"
                )


def describe_verb(verb: Callable[..., Any], kind: type[Collective[Any]]) -> None:
    """Give a function the name, signature and docstring of the collective that it runs."""
    signature = inspect.signature(kind)
    returned = "Any" if kind.has_result else "None"
    verb.__name__ = verb.__qualname__ = kind.name
    verb.__doc__ = kind.__doc__
    verb.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    verb.__annotations__ = {**annotations, "return": returned}
    verb.collective = kind  # type: ignore[attr-defined]


def _plain_signature(kind: type[Collective[Any]]) -> inspect.Signature:
    """Return the signature without annotations."""
    named = inspect.signature(kind).parameters.values()
    return inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in named])


def checked_flag(name: str, value: Any) -> bool:
    """Return an option that is either true or false; raise TypeError if it is neither."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} is neither True nor False")
    return bool(value)


def checked_rank(rank: Any, run: Owner) -> int:
    """Return the number of a rank of the run; raise TypeError or IndexError if it is none."""
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
    """Return ``do(value, arrays of all ranks)`` of each variable, ranks meeting once for all of them.

    The other arguments are those of `Communicator.at_once`.
    """
    shared = [rank.variables.shared_arrays(variable) for variable in variables]
    with rank.communicator.at_once(kind, op, shared, shapes):
        return [do(rank.value(variable), known) for variable, known in zip(variables, shared, strict=True)]


def replace_all(rank: Rank, variables: Sequence[int], values: Sequence[Any]) -> None:
    """Put new values in the place of a rank's."""
    for variable, value in zip(variables, values, strict=True):
        rank.variables.assign(variable, value)


def module_of(array: Any, rank: Rank) -> Any:
    """Return the module that computes with an array of a rank where it is."""
    return np if isinstance(array, np.ndarray) else rank.device.xp


def _listed(shared_vars: Any) -> list[Any]:
    variables = list(shared_vars) if isinstance(shared_vars, list | tuple) else [shared_vars]
    seen = set()
    for variable in variables:
        if not isinstance(variable, SharedVariable):
            raise TypeError(f"expected shared variables, got {variable!r}")
        if id(variable) in seen:
            raise ValueError(f"shared variable {describe(variable)} is given twice")
        seen.add(id(variable))
    return variables
