"""From a function as the user wrote it to the form that travels.

Definition -> sliceables and n_rows made inputs, shared variables made numbers -> ProgramSpec
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.arrays.variables import n_rows, ranks
from synk.compile.graphs import serialize
from synk.compile.graphs.substitute import substitute
from synk.functions.symbolic import Definition, Update, dtype_of
from synk.rank.spec import ProgramSpec, UpdateSpec
from synk.values.reduction import check_mode


def to_spec(
    definition: Definition, identify_all: Callable[[Sequence[SharedVariable]], Sequence[int]]
) -> ProgramSpec:
    """Turn a definition into the form that travels.

    ``identify_all`` gives shared variables their identities, sending them to the workers if need be.
    """
    rows_of = {variable: _rows_variable(variable) for variable in definition.sliceables}
    # A static length is that of the whole array, and a rank gets a part of it.
    scattered = {variable: _rows_variable(variable) for variable in definition.inputs}
    count, together = n_rows.type("n_rows"), ranks.type("ranks")
    results = [*definition.outputs, *(update.value for update in definition.updates)]
    results = substitute(results, {**scattered, **rows_of, n_rows: count, ranks: together})
    values = results[len(definition.outputs) :]
    row_inputs = {*scattered.values(), *rows_of.values(), count, together}
    graph_inputs = [*scattered.values(), *definition.bcast_inputs, *rows_of.values(), count, together]
    variables = [one for one in ancestors(results) if isinstance(one, SharedVariable)]
    variables += [*definition.sliceables, *(update.variable for update in definition.updates)]
    identify = dict(zip(variables, identify_all(variables), strict=True)).__getitem__
    return ProgramSpec(
        name=definition.name,
        graph=serialize.dumps(graph_inputs, results, identify),
        n_scattered=len(definition.inputs),
        n_broadcast=len(definition.bcast_inputs),
        sliceables=tuple(identify(variable) for variable in definition.sliceables),
        output_modes=tuple(
            check_mode(mode, dtype_of(output), "output")
            for mode, output in zip(definition.output_modes, definition.outputs, strict=True)
        ),
        updates=tuple(
            _update_spec(update, value, row_inputs, identify)
            for update, value in zip(definition.updates, values, strict=True)
        ),
        mode=definition.mode,
        needs_ranks=together in set(ancestors(results)),
    )


def _rows_variable(variable: SharedVariable) -> Variable:
    """Return the input that stands for some rows of ``variable``: axis 0 is of any length."""
    kind = variable.type
    return kind.clone(shape=(None, *kind.shape[1:]))(variable.name)


def _update_spec(
    update: Update, value: Variable, row_inputs: Iterable[Variable], identify: Callable[[SharedVariable], int]
) -> UpdateSpec:
    needs_rows = not set(row_inputs).isdisjoint(ancestors([value]))
    advances = isinstance(update.variable.type, RandomType)
    return UpdateSpec(identify(update.variable), update.mode, needs_rows, advances)
