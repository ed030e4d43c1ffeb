"""Give undeclared outputs and updates the values of one process, with as few collectives as they allow.

    Definition, as written -> exact_definition -> Definition: what ranks compute, and how that is combined

If each rank has a part of a result, such as a sum over its rows, or has some of its rows, these are combined
as the call returns, as for declared results. Collectives are inserted into the graph only where an Op there
needs the value of one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.compile.programs.graphs.serialize import topological
from synk.compile.programs.graphs.substitute import substitute
from synk.exact.collectives.marks import Addend, Whole
from synk.exact.completion import Completion
from synk.exact.definition import UNDECLARED, Definition, Update
from synk.exact.joined import joined
from synk.exact.parts import Cut, cut, first_meeting, ranks_meet
from synk.exact.rules.relations import (
    DRAWN,
    EACH,
    SAME,
    STREAM,
    SUM,
    Count,
    Own,
    Partial,
    Relation,
    Rows,
    as_rows,
)
from synk.exact.run_values import OF_THE_RUN, first_row, leads, n_rows


class Result(NamedTuple):
    """The variable that ranks compute for a result, and the operation that combines the ranks' values."""

    value: Variable
    mode: str | None
    axis: int = 0  # of "gather": the axis of the rows in the result; ``value`` has them on axis 0


def resolve_whole(definition: Definition) -> Definition:
    """Return the definition without the mark `whole` in declared results.

    The shared variables behind these marks are listed in ``takes_equal`` and ``remedies`` instead, and those
    that a declared update is computed from in its ``sources``.
    """
    written = definition.results
    modes = definition.modes
    places: dict[Variable, Variable] = {}
    declared = [value for value, mode in zip(written, modes, strict=True) if mode is not UNDECLARED]
    for node in topological(declared):
        if isinstance(node.op, Whole):
            (places[node.outputs[0]],) = substitute(node.inputs, places)
    values = substitute(written, places)
    outputs, values = values[: len(definition.outputs)], values[len(definition.outputs) :]
    updates = [
        replace(update, value=value, sources=_sources(definition, update))
        for update, value in zip(definition.updates, values, strict=True)
    ]
    return replace(
        definition,
        outputs=tuple(outputs),
        updates=tuple(updates),
        takes_equal=tuple(_behind_whole(definition, declared)),
        remedies=tuple(_behind_whole(definition, written).items()),
    )


def _behind_whole(definition: Definition, results: Sequence[Variable]) -> dict[SharedVariable, str]:
    """Return the shared variables behind the marks `whole` in ``results``, each with the mark's advice."""
    found: dict[SharedVariable, str] = {}
    for node in topological(results):
        if isinstance(node.op, Whole):
            found |= dict.fromkeys(shared_among(definition, ancestors(node.inputs)), node.op.otherwise)
    return found


def _sources(definition: Definition, update: Update) -> tuple[SharedVariable, ...]:
    return () if update.mode is UNDECLARED else tuple(shared_among(definition, ancestors([update.value])))


def shared_among(definition: Definition, variables: Iterable[Variable]) -> Iterator[SharedVariable]:
    """Yield the shared variables among ``variables`` whose values may be equal on all ranks, or may not.

    Sliceable variables, random states and the numbers of the run, such as `n_rows`, are left out: they always
    differ between ranks.
    """
    for variable in set(variables) - {*OF_THE_RUN, *definition.sliceables}:
        if isinstance(variable, SharedVariable) and not is_stream(variable):
            yield variable


def exact_definition(definition: Definition) -> Definition:
    """Return the definition by which ranks get one process's values for undeclared results.

    Raises ValueError, naming the result, if there is no such definition.
    """
    written = definition.results
    modes = definition.modes
    undeclared = [value for value, mode in zip(written, modes, strict=True) if mode is UNDECLARED]
    declared = [value for value, mode in zip(written, modes, strict=True) if mode is not UNDECLARED]
    marks = [node for node in topological(declared) if isinstance(node.op, Addend)]
    needed = [*undeclared, *(mark.inputs[0] for mark in marks)]
    makers = [partial(_output, variable=output) for output in definition.outputs]
    makers += [partial(_update, update=update) for update in definition.updates]
    makers = [make for make, mode in zip(makers, modes, strict=True) if mode is UNDECLARED]
    relations = known_relations(definition, written)
    at_once: set[Variable] = set()
    while True:
        completion = Completion(relations, at_once)
        completion.walk(needed)
        added = [completion.wanted(mark.inputs[0], SUM) for mark in marks]
        made = iter([make(completion) for make in makers])
        if (completed := completion.completed_parts(needed)) <= at_once:
            break
        at_once |= completed
    places = {mark.outputs[0]: value for mark, value in zip(marks, added, strict=True)}
    as_declared = iter(substitute(declared, places))
    results = [next(made) if mode is UNDECLARED else Result(next(as_declared), mode) for mode in modes]
    exact = [result.value for result, mode in zip(results, modes, strict=True) if mode is UNDECLARED]
    meets = ranks_meet([*exact, *added])
    values = joined([result.value for result in results])
    results = [result._replace(value=value) for result, value in zip(results, values, strict=True)]
    parts = _cut(definition, written, modes, values) if meets else Cut()
    outputs, updates = results[: len(definition.outputs)], results[len(definition.outputs) :]
    return replace(
        definition,
        outputs=tuple(result.value for result in outputs),
        output_modes=tuple(result.mode for result in outputs),
        output_axes=tuple(result.axis for result in outputs),
        updates=tuple(map(partial(_updated, completion), definition.updates, updates)),
        takes_equal=tuple({*definition.takes_equal, *_taken_as_equal(completion, definition, marks)}),
        parts=parts.parts,
        completed=parts.completed,
        needs_all_rows=parts.refused,
    )


def _cut(
    definition: Definition, written: Sequence[Variable], modes: Sequence[Any], values: Sequence[Variable]
) -> Cut:
    """Cut the graph of ``values`` at its all-reduces, or give the reason why a call takes one slice only.

    ``values`` are the variables that ranks compute for the results ``written`` by the user. If the graph can
    be cut, the inputs of the all-reduces are accumulated over all slices, and reduced once.
    """
    if ranks_meet(written):
        return Cut(refused="the ranks meet where the script says so" + first_meeting(written))
    declared = [value for value, mode in zip(values, modes, strict=True) if mode is not UNDECLARED]
    if ranks_meet(declared):
        needed = "a value of all rows is needed before slices can be added up"
        return Cut(refused=needed + first_meeting(declared))
    streams = filter(is_stream, ancestors(values))
    return cut(values, [*definition.inputs, *definition.sliceables, n_rows, first_row, leads, *streams])


def known_relations(definition: Definition, results: Sequence[Variable]) -> dict[Variable, Relation]:
    """Return the relations of the graph's inputs that differ between ranks.

    These are the inputs and shared variables with rows, the number of rows, and random states.
    """
    rows = (*definition.inputs, *definition.sliceables)
    relations: dict[Variable, Relation] = dict.fromkeys(rows, Rows(0))
    if rows:
        relations[n_rows] = Count(EACH)
    streams = [one for one in ancestors(results) if is_stream(one)]
    return relations | dict.fromkeys(streams, STREAM)


def is_stream(variable: Variable) -> bool:
    """Tell whether a variable is a shared random state, such as a NumPy generator."""
    return isinstance(variable, SharedVariable) and isinstance(variable.type, RandomType)


def _output(completion: Completion, variable: Variable) -> Result:
    value, relation = completion.local(variable)
    if isinstance(relation, Partial):
        return Result(value, relation.op)
    if isinstance(rows := as_rows(relation), Rows):
        value = completion.wanted(variable, rows)
        return Result(pt.moveaxis(value, rows.axis, 0), "gather", rows.axis)
    if isinstance(relation, Own):
        return Result(value, "avg")
    # A draw that is one for all rows is taken from rank 0, whose stream is that of one process.
    return Result(value if relation == DRAWN else completion.wanted(variable, SAME), None)


def _update(completion: Completion, update: Update) -> Result:
    if is_stream(update.variable):
        return Result(completion.local(update.value).value, None)
    value: Any = completion.wanted(update.value, SAME)
    return Result(update.variable.type.filter_variable(value, allow_convert=True), None)


def _updated(completion: Completion, update: Update, result: Result) -> Update:
    if update.mode is not UNDECLARED:
        return replace(
            update, value=result.value, per_rank=_depends_on_rows(completion, update.value) or None
        )
    if is_stream(update.variable):
        return replace(update, value=result.value, mode=None)
    per_rank = None if _from_itself(completion, update) else False
    return replace(update, value=result.value, mode=None, exact=True, per_rank=per_rank)


def _depends_on_rows(completion: Completion, value: Variable) -> bool:
    """Tell whether the value may differ between ranks, because it depends on their rows or random draws."""
    return any(completion.relation(variable) != SAME for variable in ancestors([value]))


def _from_itself(completion: Completion, update: Update) -> bool:
    """Tell whether each rank computes the new value from its own old one, without rows or collectives."""
    unchanged = completion.local(update.value).value is update.value
    return unchanged and update.variable in ancestors([update.value])


def _taken_as_equal(
    completion: Completion, definition: Definition, marks: Sequence[Apply]
) -> Iterator[SharedVariable]:
    """Yield the shared variables that must be equal on all ranks for undeclared results and for ``marks``.

    ``marks`` are the nodes of `addend` in declared results. A variable that is only computed from its own old
    value need not be equal: then each rank has its own before and afterwards.
    """
    outputs = zip(definition.outputs, definition.output_modes, strict=True)
    values = [value for value, mode in outputs if mode is UNDECLARED]
    values += [mark.inputs[0] for mark in marks]
    needed: set[Variable] = set()
    for update in definition.updates:
        if update.mode is not UNDECLARED:
            continue
        if _from_itself(completion, update):
            needed |= set(ancestors([update.value])) - {update.variable}
        else:
            values.append(update.value)
    yield from shared_among(definition, needed.union(ancestors(values)))
