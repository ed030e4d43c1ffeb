"""Turn a function's definition into the form in which it is sent to the ranks.

Definition -> rows and numbers of rows become inputs, shared variables become numbers -> ProgramSpec
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.compile.programs.graphs import serialize
from synk.compile.programs.graphs.substitute import substitute
from synk.exact.arguments import dtype_of
from synk.exact.definition import Definition, Update
from synk.exact.run_values import first_row, leads, n_rows, ranks, total_rows
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.values.by_value import Code
from synk.values.operations import check_mode


def to_spec(
    definition: Definition,
    identify_all: Callable[[Sequence[SharedVariable]], Sequence[int]],
    code: Code | None = None,
) -> ProgramSpec:
    """Return the definition in the form in which it is sent.

    ``identify_all`` returns the identities of shared variables, and sends new ones to the workers. ``code``
    is a parameter of `serialize.dumps`.

    The inputs of the graph are, in order: scattered inputs, broadcast inputs, rows of sliceable variables,
    n_rows, total_rows, first_row, leads, ranks.
    """
    rows_of = {variable: _rows_variable(variable) for variable in definition.sliceables}
    # If a type has a static length, it is that of the whole array; a rank gets fewer rows.
    scattered = {variable: _rows_variable(variable) for variable in definition.inputs}
    numbers = {number: number.type(number.name) for number in (n_rows, total_rows, first_row, leads)}
    ranks_input = ranks.type("ranks")
    n_outputs, n_results = len(definition.outputs), len(definition.outputs) + len(definition.updates)
    results = definition.results
    results += [part for part, _ in definition.parts]
    results = substitute(results, {**scattered, **rows_of, **numbers, ranks: ranks_input})
    values = results[n_outputs:n_results]
    of_rank = [*rows_of.values(), *numbers.values(), ranks_input]
    graph_inputs = [*scattered.values(), *definition.bcast_inputs, *of_rank]
    row_inputs = {*scattered.values(), *of_rank}
    variables = [one for one in ancestors(results) if isinstance(one, SharedVariable)]
    variables += [*definition.sliceables, *(update.variable for update in definition.updates)]
    identities = dict(zip(variables, identify_all(variables), strict=True))

    def identify(variable: SharedVariable) -> int:
        if variable not in identities:  # only code of the script inside an Op refers to it
            identities[variable] = identify_all([variable])[0]
        return identities[variable]

    return ProgramSpec(
        name=definition.name,
        graph=serialize.dumps(graph_inputs, results, identify, code),
        n_scattered=len(definition.inputs),
        n_broadcast=len(definition.bcast_inputs),
        sliceables=tuple(identify(variable) for variable in definition.sliceables),
        output_modes=tuple(
            check_mode(mode, dtype_of(output), "output")
            for mode, output in zip(definition.output_modes, definition.outputs, strict=True)
        ),
        updates=tuple(
            _update_spec(update, value, row_inputs, ranks_input, identify)
            for update, value in zip(definition.updates, values, strict=True)
        ),
        mode=definition.mode,
        needs_ranks=ranks_input in set(ancestors(results)),
        parts=tuple(operation for _, operation in definition.parts),
        completed=definition.completed,
    )


def _rows_variable(variable: SharedVariable) -> Variable:
    """Return a new input like ``variable``, for a part of its rows: its axis 0 may have any length."""
    kind = variable.type
    return kind.clone(shape=(None, *kind.shape[1:]))(variable.name)


def _update_spec(
    update: Update,
    value: Variable,
    row_inputs: Set[Variable],
    ranks_input: Variable,
    identify: Callable[[SharedVariable], int],
) -> UpdateSpec:
    """Describe an update in the form in which it is sent; ``value`` is its new value in the sent graph."""
    used = set(ancestors([value]))
    return UpdateSpec(
        identify(update.variable),
        update.mode,
        # An exact value is computed as a whole in every slice of every rank, from the values before the call.
        needs_rows=not update.exact and not row_inputs.isdisjoint(used),
        advances=not update.exact and isinstance(update.variable.type, RandomType),
        needs_ranks=ranks_input in used,
    )
