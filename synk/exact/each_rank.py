"""Let undeclared results be those of each rank's rows, as they once were: ``fork(undeclared="warn")``.

Definition, as written -> of_each_rank -> Definition: "avg" where nothing is declared
                       -> warn_of_undeclared: which of them are known to be other numbers than one process's
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType

from synk.exact.declared import findings, misdeclared, warn
from synk.exact.definition import UNDECLARED, Definition, dtype_of, is_sparse
from synk.exact.run_values import describe
from synk.values.reduction import check_mode


def of_each_rank(definition: Definition) -> Definition:
    """Return a definition in which undeclared outputs are averaged over ranks, and updates over slices.

    Updates of integers, booleans and random states keep the last slice's value. Raises TypeError for an
    undeclared output of integers or booleans, which have no average.
    """
    outputs = zip(definition.outputs, definition.output_modes, strict=True)
    return replace(
        definition,
        output_modes=tuple(
            output_mode(k, output) if mode is UNDECLARED else mode for k, (output, mode) in enumerate(outputs)
        ),
        updates=tuple(
            replace(update, mode=update_mode(update.value)) if update.mode is UNDECLARED else update
            for update in definition.updates
        ),
    )


def output_mode(position: int, output: Variable) -> str | None:
    """Return by which operation an undeclared output combines."""
    if is_sparse(output):
        raise TypeError(
            f"output {position} ({describe(output)}) is sparse, which has no 'avg'; "
            "make it dense by pytensor.sparse.dense_from_sparse, or use None"
        )
    return check_mode("avg", dtype_of(output), f"output {position} ({describe(output)})")


def update_mode(value: Variable) -> str | None:
    """Return by which operation the slices of an undeclared update combine."""
    dtype: Any = dtype_of(value)
    averages = dtype is not None and np.dtype(dtype).kind in "fc" and not is_sparse(value)
    return "avg" if averages else None


def warn_of_undeclared(definition: Definition) -> None:
    """Warn of what is known to give another number than one process, by declaration or without one."""
    undeclared: list[tuple[str, Variable, Any]] = [
        (f"output {k} ({describe(output)}), averaged over ranks", output, "avg")
        for k, (output, mode) in enumerate(zip(definition.outputs, definition.output_modes, strict=True))
        if mode is UNDECLARED
    ]
    updates: list[tuple[str, Variable, Any]] = [
        (
            f"the update of {describe(update.variable)}, which each rank makes from its own rows",
            update.value,
            None,
        )
        for update in definition.updates
        if update.mode is UNDECLARED and not isinstance(update.variable.type, RandomType)
    ]
    said = [*map(str, [*misdeclared(definition), *findings(definition, undeclared)])]
    said += [str(finding._replace(remedy=None)) for finding in findings(definition, updates)]
    if said:
        warn(
            definition,
            said,
            'leave operations out, and fork(undeclared="warn"), for the numbers of one process',
        )
