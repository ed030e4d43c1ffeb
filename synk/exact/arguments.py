"""Check each argument of `synk.function` by itself, and bring it into one form.

inputs, outputs, updates, givens, sliceable_shareds, as a script writes them -> tuples and lists of variables
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.type import DenseTensorType, TensorType

from synk.exact.definition import UNDECLARED
from synk.exact.run_values import describe
from synk.values.operations import check_mode


def inputs_of(argument: str, inputs: Any) -> tuple[Variable, ...]:
    """Return the variables of ``inputs`` or ``bcast_inputs``, all symbolic."""
    for variable in _listed(argument, "variables", inputs):
        if not isinstance(variable, Variable) or isinstance(variable, Constant | SharedVariable):
            raise TypeError(f"{argument} must hold symbolic variables, got {variable!r}")
    return tuple(inputs)


def _listed(argument: str, what: str, values: Any) -> Sequence[Any]:
    """Return ``values``; raise TypeError unless they are a list or tuple."""
    if not isinstance(values, list | tuple):
        hint = "; pass a list of one" if isinstance(values, Variable) else ""
        raise TypeError(f"{argument} must be a list of {what}, got {type(values).__name__}{hint}")
    return values


def check_inputs(scattered: Sequence[Variable], broadcast: Sequence[Variable]) -> None:
    """Raise for an input that is given twice, is no dense array, or has no rows to scatter."""
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


def outputs_of(outputs: Any) -> tuple[list[Variable], tuple[Any, ...], str]:
    """Return output variables, the operation of each, and whether they are a "list", "single" or "none"."""
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
    """Say whether an output is a tuple, of a variable and an operation."""
    if isinstance(entry, tuple) and len(entry) != 2:
        raise TypeError(f"an output tuple is (variable, operation), got {len(entry)} entries")
    return isinstance(entry, tuple)


def is_sparse(variable: Variable) -> bool:
    """Tell whether a variable holds sparse matrices: then its type is a TensorType but no DenseTensorType."""
    return isinstance(variable.type, TensorType) and not isinstance(variable.type, DenseTensorType)


def dtype_of(variable: Variable) -> str | None:
    """Return the dtype of an array; None if the variable is something else."""
    return variable.type.dtype if isinstance(variable.type, TensorType) else None


def updates_of(updates: Any) -> list[tuple[Any, Any, Any]]:
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


def givens_of(givens: Any) -> tuple[tuple[Variable, Variable], ...]:
    """Return givens as pairs (variable, replacement), each replacement of the type of its variable."""
    if givens is None:
        return ()
    pairs = list(givens.items()) if isinstance(givens, Mapping) else list(givens)
    result = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], Variable):
            raise TypeError(f"givens must hold pairs (variable, replacement), got {pair!r}")
        result.append((pair[0], pair[0].type.filter_variable(pair[1], allow_convert=True)))
    return tuple(result)


def sliceables_of(sliceables: Any) -> tuple[SharedVariable, ...]:
    """Return sliceable shared variables, which must have rows."""
    sliceables = [] if sliceables is None else _listed("sliceable_shareds", "shared variables", sliceables)
    for variable in sliceables:
        if not isinstance(variable, SharedVariable):
            raise TypeError(f"sliceable_shareds must hold shared variables, got {variable!r}")
        if not isinstance(variable.type, DenseTensorType) or variable.type.ndim == 0:
            raise TypeError(f"sliceable variable {describe(variable)} has no rows: it is {variable.type}")
        if list(sliceables).count(variable) > 1:
            raise ValueError(f"sliceable variable {describe(variable)} is given twice")
    return tuple(sliceables)
