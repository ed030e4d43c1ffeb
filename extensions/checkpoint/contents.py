"""Collect the contents of a checkpoint: shared variables by name, copies of their values, plain values.

    dict, training function, what a rule returned, variable, or a list of those
        -> named -> dict of str to shared variable -> copies -> dict of str to array or generator
                                                   -> copies_of_ranks -> the same, of what is per rank
    dict of values -> plain -> dict of what JSON keeps

Where all ranks have equal values, rank 0's is copied. Of variables that are per rank, and of random states,
each rank's own value is copied.

Contents that could not be restored are refused: two variables of one name, a variable without a name, a
tuple, which would come back as a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

import synk
from synk.extensions.checkpoint.file_format import OfRanks, Rows


def named(variables: Any) -> dict[str, Any]:
    """Return shared variables by name, from any argument that `synk.extensions.checkpoint.save` takes.

    A variable that is given without a name has its own. A variable that is given twice keeps its first name.
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


def causes(variables: Any) -> dict[str, Any]:
    """Return why variables are per rank, as `synk.per_rank` does, by name; others are left out.

    Raises ValueError, naming variables, if all values but rank 0's ended with a run that is closed.
    """
    found = {name: synk.per_rank(variable) for name, variable in named(variables).items()}
    left = {name: since for name, since in found.items() if since is not None and since.kind == "left"}
    if left:
        raise ValueError(
            f"{causes_text(left)}, and the values of all ranks but rank 0 ended with the run; save before "
            "synk.close(), or give the variables values"
        )
    return {name: since for name, since in found.items() if since is not None}


def causes_text(found: Mapping[str, Any]) -> str:
    """Return the result of `causes` as text for an error."""
    return ", ".join(f"'{name}' is per rank since {since.what}" for name, since in found.items())


def copies_of_ranks(variables: Any, copied: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of all ranks' values of variables that are per rank; `copied` has those of rank 0.

    To be called in a `synk.turn`; raises what `causes` and `synk.get_value` do.
    """
    found, since = named(variables), causes(variables)
    if not synk.is_open():
        return {}
    several = synk.n_ranks() > 1
    streams = {name for name, value in copied.items() if isinstance(value, np.random.Generator) and several}
    own = [name for name in found if name in streams or name in since]
    ranks = range(1, synk.n_ranks()) if own else ()
    others = [synk.get_value(rank, [found[name] for name in own]) for rank in ranks]
    of_ranks = {name: (copied[name], *values) for name, *values in zip(own, *others, strict=True)}
    rows = {name for name in since if since[name].kind == "rows"}
    return {
        name: Rows(values) if name in rows else OfRanks(values)
        for name, values in of_ranks.items()
        if name in rows | streams or not _are_equal(values)
    }


def _are_equal(values: Sequence[Any]) -> bool:
    return len({(one.shape, one.tobytes()) for one in values}) == 1


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
    """Return the value without a copy; outside of a `synk.turn`, a call may be changing it."""
    return variable.get_value(borrow=True)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values in the form in which JSON restores them: NumPy's numbers become Python's.

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
