"""What `sequence` takes: functions, and collectives as partials or tuples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from synk.arrays.variables import describe
from synk.functions.collectives import Collectives
from synk.functions.function import Prepared
from synk.functions.graph_function import GraphFunction


def sequence_item(item: Any, collectives: Collectives) -> GraphFunction | Callable[[], Prepared]:
    """Return a function, or what prepares a collective.

    Parameters
    ----------
    item : GraphFunction, partial or tuple
        A collective as ``functools.partial(synk.all_reduce, variable)`` or ``(synk.all_reduce, variable)``.
    collectives : Collectives
        Those of the run.

    Raises
    ------
    TypeError
        If it is something else, or a collective that needs a call of its own.
    """
    if isinstance(item, GraphFunction):
        return item
    if isinstance(item, tuple) and item and callable(item[0]):
        item = partial(item[0], *item[1:])
    if isinstance(item, partial) and getattr(item.func, "is_collective", False):
        if item.func.__name__ == "broadcast":
            _refuse_what_is_resent(item)
        return partial(getattr(collectives, item.func.__name__), *item.args, **item.keywords)
    raise TypeError(
        "sequence() takes functions and collectives as functools.partial(synk.all_reduce, variable) "
        f"or (synk.all_reduce, variable), got {item!r}"
    )


def _refuse_what_is_resent(item: partial[Any]) -> None:
    """What is not a dense array travels beside commands, so within one it would come too early."""
    for argument in (*item.args, *item.keywords.values()):
        for variable in argument if isinstance(argument, list | tuple) else [argument]:
            if isinstance(variable, SharedVariable) and not isinstance(variable.type, DenseTensorType):
                kind = "random state" if isinstance(variable.type, RandomType) else "shared variable"
                raise TypeError(
                    f"{kind} {describe(variable)} cannot be broadcast in a sequence; "
                    "broadcast it in a call of its own"
                )
