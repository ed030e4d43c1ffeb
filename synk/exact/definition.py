"""Check what the user writes and put it in order: inputs, outputs, updates, givens, sliceables.

    inputs, outputs, updates, givens -> define -> Definition (symbolic) -> spec.to_spec

Nothing is compiled here and no message is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.link.basic import JITLinker
from pytensor.link.c.basic import CLinker
from pytensor.tensor.type import DenseTensorType, TensorType

from synk.compile import ArrayLinker
from synk.compile.programs.graphs.minima import with_minima
from synk.compile.programs.graphs.substitute import substitute
from synk.compile.programs.graphs.width import as_performed
from synk.compile.rewriting.until_gradients import check_until_gradients
from synk.exact.run_values import describe, first_row, leads, n_rows, total_rows
from synk.values.operations import check_mode


class Undeclared(Enum):
    """The mode of an output or update without an operation: its value is to be that of one process."""

    UNDECLARED = "undeclared"


UNDECLARED = Undeclared.UNDECLARED


@dataclass(frozen=True)
class Update:
    """A shared variable, its new value, and the operation by which the values of slices accumulate.

    An exact value is that of one process: it is the same in every slice of every rank, also in those without
    rows, whatever ``mode``.
    """

    variable: SharedVariable
    value: Variable
    mode: Any  # one of `MODES`, or `UNDECLARED`
    exact: bool = False
    # Whether the variable has different values on the ranks after the update. None: it does if it did before,
    # or if one of the ``sources`` does.
    per_rank: bool | None = None
    sources: tuple[SharedVariable, ...] = ()  # shared variables from which a declared new value is computed


@dataclass(frozen=True)
class Definition:
    """The inputs, outputs and updates of a function, still symbolic, after they were checked."""

    name: str
    inputs: tuple[Variable, ...]
    bcast_inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    output_modes: tuple[Any, ...]  # with "c_" prefixes
    output_axes: tuple[int, ...]  # the axis of the rows in gathered outputs; in the graph they are on axis 0
    returns: str  # "list", "single" or "none"
    updates: tuple[Update, ...]
    givens: tuple[tuple[Variable, Variable], ...]
    sliceables: tuple[SharedVariable, ...]
    mode: Any
    # Shared variables whose values must be equal on all ranks, or a call is refused; and, for some of them,
    # what the error advises (see `whole`).
    takes_equal: tuple[SharedVariable, ...] = ()
    remedies: tuple[tuple[SharedVariable, str], ...] = ()
    # If there are all-reduces in the graph: the values that accumulate over slices, each with its operation,
    # before one all-reduce combines them. If that is not possible, the reason why a call takes one slice
    # only.
    parts: tuple[tuple[Variable, str], ...] = ()
    completed: tuple[int, ...] = ()  # positions of results computed from parts; outputs come before updates
    needs_all_rows: str = ""
    # Outputs, then new values, in the dtypes that the user's graph declares; ``outputs`` and ``updates`` have
    # the dtypes that its Ops compute.
    as_written: tuple[Variable, ...] = ()

    @property
    def all_inputs(self) -> tuple[Variable, ...]:
        """Scattered inputs, then broadcast ones."""
        return self.inputs + self.bcast_inputs


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
    scattered = _inputs("inputs", inputs)
    broadcast = _inputs("bcast_inputs", [] if bcast_inputs is None else bcast_inputs)
    _check_inputs(scattered, broadcast)
    output_variables, modes, returns = _outputs(outputs)
    triples = _updates(updates)
    pairs = _givens(givens)
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
        sliceables=_sliceables(sliceable_shareds),
        mode=mode,
        as_written=tuple(as_written),
    )
    _check_whole(definition, on_unused_input)
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


# --- inputs ------------------------------------------------------------------------------------


def _inputs(argument: str, inputs: Any) -> tuple[Variable, ...]:
    for variable in _listed(argument, "variables", inputs):
        if not isinstance(variable, Variable) or isinstance(variable, Constant | SharedVariable):
            raise TypeError(f"{argument} must hold symbolic variables, got {variable!r}")
    return tuple(inputs)


def _listed(argument: str, what: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        hint = "; pass a list of one" if isinstance(values, Variable) else ""
        raise TypeError(f"{argument} must be a list of {what}, got {type(values).__name__}{hint}")
    return values


def _check_inputs(scattered: Sequence[Variable], broadcast: Sequence[Variable]) -> None:
    both = [*scattered, *broadcast]
    for position, variable in enumerate(both):
        if variable in both[:position]:
            raise ValueError(f"input {describe(variable)} is given twice")
    for variable in both:
        if is_sparse(variable):
            raise TypeError(
                f"input {describe(variable)} is sparse; pass dense rows, or its parts as bcast_inputs, "
                "of which pytensor.sparse.CSR(data, indices, indptr, shape) makes the matrix in the graph"
            )
        if not hasattr(variable.type, "dtype"):
            raise TypeError(
                f"input {describe(variable)} is {variable.type}, not an array; make it a shared variable"
            )
    for variable in scattered:
        if not isinstance(variable.type, TensorType) or variable.type.ndim == 0:
            raise TypeError(f"input {describe(variable)} has no rows to scatter; put it in bcast_inputs")
        if variable.type.shape[0] == 1:  # a length of 1 is broadcast, and the rows of a rank are not
            raise ValueError(
                f"input {describe(variable)} is {variable.type}, of a single row, which cannot be scattered; "
                "put it in bcast_inputs, or give it another type"
            )


# --- outputs -----------------------------------------------------------------------------------


def _outputs(outputs: Any) -> tuple[list[Variable], tuple[Any, ...], str]:
    if outputs is None:
        return [], (), "none"
    # A tuple is one output and its operation, as in the ancestor.
    entries = outputs if isinstance(outputs, list) else [outputs]
    variables, modes = [], []
    for position, entry in enumerate(entries):
        variable, mode = entry if _is_pair(entry) else (entry, UNDECLARED)
        if not isinstance(variable, Variable):
            raise TypeError(f"output {position} must be a variable or (variable, operation), got {entry!r}")
        if is_sparse(variable) and mode not in (None, UNDECLARED):
            raise TypeError(
                f"output {position} ({describe(variable)}) is sparse, which has no {mode!r}; "
                "make it dense by pytensor.sparse.dense_from_sparse, or use None"
            )
        if mode is not UNDECLARED:
            check_mode(mode, dtype_of(variable), f"output {position} ({describe(variable)})")
        variables.append(variable)
        modes.append(mode)
    return variables, tuple(modes), "list" if isinstance(outputs, list) else "single"


def _is_pair(entry: Any) -> bool:
    if isinstance(entry, tuple) and len(entry) != 2:
        raise TypeError(f"an output tuple is (variable, operation), got {len(entry)} entries")
    return isinstance(entry, tuple)


def is_sparse(variable: Variable) -> bool:
    """Tell whether a variable holds sparse matrices: then its type is a TensorType but no DenseTensorType."""
    return isinstance(variable.type, TensorType) and not isinstance(variable.type, DenseTensorType)


def dtype_of(variable: Variable) -> str | None:
    """Return the dtype of an array; None if the variable is something else."""
    return variable.type.dtype if isinstance(variable.type, TensorType) else None


# --- updates -----------------------------------------------------------------------------------


def _updates(updates: Any) -> list[tuple[Any, Any, Any]]:
    """Return updates, in any form that users may write, as triples (variable, new value, operation)."""
    if updates is None:
        return []
    entries = list(updates.items()) if isinstance(updates, Mapping) else updates
    if not isinstance(entries, list | tuple):
        raise TypeError("updates must be a list of (variable, new value) or (variable, new value, operation)")
    triples = []
    for entry in entries:
        if not isinstance(entry, tuple | list) or len(entry) not in (2, 3):
            raise TypeError(
                f"an update is (variable, new value) or (variable, new value, operation), got {entry!r}"
            )
        variable, value, mode = (*entry, UNDECLARED)[:3]
        if not isinstance(variable, SharedVariable):
            raise TypeError(f"only shared variables can be updated, got {variable!r}")
        triples.append((variable, variable.type.filter_variable(value, allow_convert=True), mode))
    return triples


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
    what = f"the update of {describe(variable)}"
    if mode is UNDECLARED:
        return Update(variable, value, mode)
    if mode == "gather" and variable.type.ndim == 0:
        raise ValueError(f"{what} gathers rows, but {describe(variable)} is 0-d")
    return Update(variable, value, check_mode(mode, dtype_of(variable), what))


# --- givens and sliceables ---------------------------------------------------------------------


def _givens(givens: Any) -> tuple[tuple[Variable, Variable], ...]:
    if givens is None:
        return ()
    pairs = list(givens.items()) if isinstance(givens, Mapping) else list(givens)
    result = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], Variable):
            raise TypeError(f"givens must hold pairs (variable, replacement), got {pair!r}")
        result.append((pair[0], pair[0].type.filter_variable(pair[1], allow_convert=True)))
    return tuple(result)


def _sliceables(sliceables: Any) -> tuple[SharedVariable, ...]:
    sliceables = [] if sliceables is None else _listed("sliceable_shareds", "shared variables", sliceables)
    for variable in sliceables:
        if not isinstance(variable, SharedVariable):
            raise TypeError(f"sliceable_shareds must hold shared variables, got {variable!r}")
        if not isinstance(variable.type, DenseTensorType) or variable.type.ndim == 0:
            raise TypeError(f"sliceable variable {describe(variable)} has no rows: it is {variable.type}")
        if list(sliceables).count(variable) > 1:
            raise ValueError(f"sliceable variable {describe(variable)} is given twice")
    return tuple(sliceables)


# --- the definition as a whole -----------------------------------------------------------------


def _check_whole(definition: Definition, on_unused_input: str) -> None:
    updated = [update.variable for update in definition.updates]
    for position, variable in enumerate(updated):
        if variable in updated[:position]:
            raise ValueError(f"shared variable {describe(variable)} is updated twice")
        if variable in definition.sliceables:
            raise ValueError(
                f"shared variable {describe(variable)} is sliceable, so this function cannot update it; "
                "update it in a function of its own"
            )
    results = [*definition.outputs, *(update.value for update in definition.updates)]
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
