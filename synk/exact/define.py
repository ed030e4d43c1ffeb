"""Make the `Definition` of a function of what a script writes, and check it as a whole.

    inputs, outputs, updates, givens -> define -> Definition, as written -> definition_for_ranks

Nothing is compiled here and no message is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.link.basic import JITLinker
from pytensor.link.c.basic import CLinker

from synk.compile import ArrayLinker
from synk.compile.programs.graphs.minima import with_minima
from synk.compile.programs.graphs.substitute import substitute
from synk.compile.programs.graphs.width import as_performed
from synk.compile.rewriting.until_gradients import check_until_gradients
from synk.exact.arguments import (
    check_inputs,
    dtype_of,
    givens_of,
    inputs_of,
    outputs_of,
    sliceables_of,
    updates_of,
)
from synk.exact.definition import UNDECLARED, Definition, Update
from synk.exact.run_values import describe, first_row, leads, n_rows, total_rows
from synk.values.operations import check_mode


def define(
    name: str,
    inputs: Any,
    outputs: Any = None,
    bcast_inputs: Any = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Any = None,
    mode: Any = None,
    on_unused_input: str = "raise",
) -> Definition:
    """Return the checked `Definition` of a function from the arguments of `synk.function`.

    Raises TypeError or ValueError, naming the argument and the variable that is wrong.
    """
    if not isinstance(name, str):
        raise TypeError(f"name={name!r} is no string")
    _check_mode(mode)
    scattered = inputs_of("inputs", inputs)
    broadcast = inputs_of("bcast_inputs", [] if bcast_inputs is None else bcast_inputs)
    check_inputs(scattered, broadcast)
    output_variables, modes, returns = outputs_of(outputs)
    triples = updates_of(updates)
    pairs = givens_of(givens)
    expressions = [*output_variables, *(value for _, value, _ in triples)]
    triples += _default_updates(
        [*expressions, *(given for _, given in pairs)], [variable for variable, _, _ in triples]
    )
    results = [*output_variables, *(value for _, value, _ in triples)]
    as_written = with_minima(substitute(results, dict(pairs)))
    expressions = as_performed(as_written)
    written = [
        (variable, _fitting(variable, expression), mode)
        for (variable, _, mode), expression in zip(triples, expressions[len(output_variables) :], strict=True)
    ]
    definition = Definition(
        name=name,
        inputs=scattered,
        bcast_inputs=broadcast,
        outputs=tuple(expressions[: len(output_variables)]),
        output_modes=modes,
        output_axes=(0,) * len(modes),
        returns=returns,
        updates=tuple(_checked_update(*update) for update in written),
        givens=pairs,
        sliceables=sliceables_of(sliceable_shareds),
        mode=mode,
        as_written=tuple(as_written),
    )
    _check_updated(definition)
    _check_used(definition, on_unused_input)
    return definition


def _check_mode(mode: Any) -> None:
    """Raise ValueError for a mode that compiles by Numba, JAX or C, which know no collectives."""
    if mode in (None, "debug"):
        return
    linker = getattr(get_mode(mode), "linker", None)
    if isinstance(linker, JITLinker | CLinker) and not isinstance(linker, ArrayLinker):
        shown = repr(mode) if isinstance(mode, str) else "a Mode"
        raise ValueError(
            f"mode={shown} compiles by {type(linker).__name__}, in which ranks cannot meet: leave mode out "
            "for synk's own, or pass one that runs an Op at a time, such as 'FAST_COMPILE' or 'debug'"
        )


def _default_updates(
    expressions: Sequence[Variable], updated: Sequence[Variable]
) -> list[tuple[Any, Any, Any]]:
    """Return the default updates of shared variables, such as random states, as triples.

    They are those of the variables behind ``expressions``, and of the variables behind such updates.
    """
    found: list[tuple[Any, Any, Any]] = []
    seen = list(updated)
    pending = list(expressions)
    while pending:
        new = []
        for variable in ancestors(pending):
            default = getattr(variable, "_default_update", None)
            if default is not None and variable not in seen:
                seen.append(variable)
                new.append((variable, default, UNDECLARED))
        found += new
        pending = [value for _, value, _ in new]
    return found


def _fitting(variable: Any, value: Any) -> Any:
    """Return a new value, cast to the dtype of its variable: a running sum of integers has a wider one."""
    dtype = getattr(variable.type, "dtype", None)
    return value if getattr(value.type, "dtype", None) == dtype else value.astype(dtype)


def _checked_update(variable: Any, value: Any, mode: Any) -> Update:
    """Return an update; raise ValueError or TypeError if its operation does not suit the variable."""
    what = f"the update of {describe(variable)}"
    if mode is UNDECLARED:
        return Update(variable, value, mode)
    if mode == "gather" and variable.type.ndim == 0:
        raise ValueError(f"{what} gathers rows, but {describe(variable)} is 0-d")
    return Update(variable, value, check_mode(mode, dtype_of(variable), what))


def _check_updated(definition: Definition) -> None:
    """Raise ValueError for a variable that is updated twice, or sliced and updated."""
    updated = [update.variable for update in definition.updates]
    for position, variable in enumerate(updated):
        if variable in updated[:position]:
            raise ValueError(f"shared variable {describe(variable)} is updated twice")
        if variable in definition.sliceables:
            raise ValueError(
                f"shared variable {describe(variable)} is sliceable, so this function cannot update it; "
                "update it in a function of its own"
            )


def _check_used(definition: Definition, on_unused_input: str) -> None:
    """Raise ValueError if the graph lacks an input, or does not use what it was given."""
    results = definition.results
    check_until_gradients(results)
    used = set(ancestors(results))
    for variable in definition.sliceables:
        if variable not in used:
            raise ValueError(f"sliceable variable {describe(variable)} is not used in this function")
    numbers = {n_rows, total_rows, first_row, leads}
    counted = set() if used.isdisjoint(numbers) else set(definition.inputs)  # only their rows are used
    for variable in definition.all_inputs:
        if variable not in used | counted and on_unused_input == "raise":
            raise ValueError(
                f"input {describe(variable)} is not used in this function; "
                "pass on_unused_input='ignore' if that is meant"
            )
    known = set(definition.all_inputs)
    for variable in used:
        if (
            variable.owner is None
            and not isinstance(variable, Constant | SharedVariable)
            and variable not in known
        ):
            raise ValueError(f"variable {describe(variable)} is needed but is not an input")
