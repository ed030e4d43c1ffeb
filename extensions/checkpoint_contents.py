"""Collect what is saved: shared variables by name, copies of their values, and plain values.

    dict, training function, what a rule returned, variable, or a list of those
        -> named -> dict of str to shared variable -> copies -> dict of str to array or generator
    dict of values -> plain -> dict of what JSON keeps

Ranks hold the same parameters, so rank 0 speaks for all. What each rank has for itself, random states first
of all, other ranks add as ``"rank 1/name"``.

What could get lost is refused: two variables of one name, one without a name, a tuple that would come back as
a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, ValuesView
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

import synk

OF_RANK = re.compile(r"^rank \d+/")


def named(variables: Any) -> dict[str, Any]:
    """Return shared variables by name, of all that `synk.extensions.checkpoint.save` takes.

    Where no name is given, it is the variable's own. A variable that comes again keeps its first name.
    Raises TypeError if a name is not a string, something is neither a shared tensor nor a shared generator,
    or a function does not train; ValueError if a variable has no name, or two have the same.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, variable in _pairs(variables):
        _check(name, variable)
        if id(variable) in seen:
            continue
        if name in found:
            raise ValueError(
                f"two shared variables are called '{name}'; name each where it is made, "
                "pytensor.shared(value, name=...), or pass a dict of names"
            )
        seen.add(id(variable))
        found[name] = variable
    return found


def of_each_rank(variables: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `named` that each rank has for itself: random states, and ``per_rank`` of functions."""
    own = {id(variable) for variable in _per_rank(variables)}
    return {
        name: variable
        for name, variable in found.items()
        if id(variable) in own or isinstance(value_of(variable), np.random.Generator)
    }


def _per_rank(variables: Any) -> Iterator[Any]:
    if isinstance(variables, synk.Function):
        yield from variables.per_rank
    elif isinstance(variables, list | tuple | ValuesView):
        for part in variables:
            yield from _per_rank(part)


def copies(variables: Any, room: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return copies of the values on rank 0 by name, in the arrays of `room` where they fit.

    To be called in a `synk.turn`.
    """
    kept = room or {}
    return {name: _copy(variable, kept.get(name)) for name, variable in named(variables).items()}


def _copy(variable: Any, room: Any) -> Any:
    value = value_of(variable)
    arrays = isinstance(value, np.ndarray) and isinstance(room, np.ndarray)
    if not arrays or (value.dtype, value.shape) != (room.dtype, room.shape):
        return variable.get_value()
    np.copyto(room, value)
    return room


def copies_of_others(variables: Any) -> dict[str, Any]:
    """Return the values on the other ranks where each has its own, as ``"rank 1/name"``.

    To be called in a `synk.turn`; raises what `synk.get_value` does.
    """
    found = of_each_rank(variables, named(variables))
    if not synk.is_open() or synk.n_ranks() == 1 or not found:
        return {}
    own = list(found.values())
    of_ranks = [dict(zip(found, synk.get_value(rank, own), strict=True)) for rank in range(synk.n_ranks())]
    differing = [name for name in found if any(_differ(of_ranks[0][name], other[name]) for other in of_ranks)]
    return {
        of_rank(rank, name): values[name]
        for rank, values in enumerate(of_ranks)
        if rank
        for name in differing
    }


def of_rank(rank: int, name: str) -> str:
    """Return the name under which a checkpoint has the value of another rank than 0."""
    return f"rank {rank}/{name}"


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, np.random.Generator):
        return True  # at the next draw, if not now
    return one.shape != other.shape or one.tobytes() != other.tobytes()


def _pairs(variables: Any) -> Iterator[tuple[Any, Any]]:
    """Yield names and variables, in order."""
    if isinstance(variables, Mapping):
        yield from variables.items()
    elif isinstance(variables, synk.Function):
        if not variables.state:
            raise TypeError(
                f"{variables!r} has no state; pass what make_train_function returned, or variables"
            )
        yield from _pairs(variables.state)
    elif hasattr(variables, "param_updates"):
        yield from _pairs([variable for variable, _ in variables.param_updates])
    elif isinstance(variables, list | tuple | ValuesView):
        for part in variables:
            yield from _pairs(part)
    else:
        yield getattr(variables, "name", ""), variables


def _check(name: Any, variable: Any) -> None:
    shared = isinstance(variable, SharedVariable)
    if not isinstance(name, str) and not (shared and name is None):
        raise TypeError(f"name {name!r} is not a string")
    if not shared or not isinstance(value_of(variable), np.ndarray | np.random.Generator):
        raise TypeError(f"variable '{name}' is neither a shared tensor nor a random generator: {variable!r}")
    if not name:
        raise ValueError(
            f"a shared variable of {variable.type} has no name; name it where it is made, "
            "pytensor.shared(value, name=...), or pass a dict of names"
        )


def value_of(variable: Any) -> Any:
    """Return the value itself, which a call may be changing, unless this is in a `synk.turn`."""
    return variable.get_value(borrow=True)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON keeps them: equal, and of the same types but for NumPy's numbers.

    TypeError if a name is no string, or a value no number, string or None, nor a list or dict of those.
    """
    for name in values:
        if not isinstance(name, str):
            raise TypeError(f"name {name!r} is not a string")
    return {name: _plain(name, value) for name, value in values.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(name, item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(name, item) for key, item in value.items()}
    raise TypeError(
        f"value '{name}' has a {type(value).__name__} in it; a checkpoint keeps numbers, strings, None, and "
        "lists and dicts (with strings as keys) of those"
    )
