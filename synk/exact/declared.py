"""Compare the operations that outputs are declared with to what one process gives, and warn of others.

    Definition, as written -> misdeclared -> warn_of: one SynkWarning for a function, when it is built

Only what is known to differ is told: an operation may be right for reasons that a graph does not show.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytensor.scalar.basic as ps
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.compile.programs.graphs.serialize import topological
from synk.compile.programs.graphs.substitute import substitute
from synk.exact.collectives.collectives import AllReduceOp
from synk.exact.collectives.marks import Addend
from synk.exact.completion import Completion
from synk.exact.definition import UNDECLARED, Definition
from synk.exact.growth import Growth, growth_of
from synk.exact.parts import ranks_meet
from synk.exact.results import known_relations
from synk.exact.rules.relations import SAME, SUM, Count, Partial, Relation, Rows, as_rows
from synk.exact.run_values import describe, ranks
from synk.values.errors import SynkWarning
from synk.values.script_frames import stacklevel

RANKS_OWN = (None, "gather")  # say that what each rank has is meant
REPEATED = ("it adds", "it multiplies")  # why a result is wrong of which ranks have a part alike
KINDS = {"prod": "the product", "max": "the largest", "min": "the smallest"}


class WrongDeclaration(NamedTuple):
    """A result that is not that of one process as it is declared."""

    what: str
    why: str
    remedy: str | None  # the operation that is right; None where there is none

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + ("" if self.remedy is None else f'; declare "{self.remedy}"')


def warn_of_declared(definition: Definition) -> None:
    """Warn of declared outputs that are known not to give one process's number."""
    said = [*map(str, misdeclared(definition))]
    if said:
        warn(definition, said, "leave the operation out for the numbers of one process")


def warn_of_updates(definition: Definition) -> None:
    """Warn of updates declared "sum" or "prod" with a part that counts once for each slice, as old values."""
    judged = [
        (f"the update of {describe(update.variable)}, declared {update.mode!r}", update.value, update.mode)
        for update in definition.updates
        if update.mode in ("sum", "prod")
    ]
    # The sum of other values of slices may be meant, such as means.
    old = {id(one.value) for one in definition.updates if one.variable in ancestors([one.value])}
    sums_of_old = {what for what, value, mode in judged if mode == "sum" and id(value) in old}
    said = [
        f"{found.what}: {found.why}; what all slices have counts once for each slice, and for each rank "
        "where ranks meet"
        for found in findings(definition, judged)
        if found.what in sums_of_old or found.why.startswith(REPEATED)
    ]
    if said:
        remedy = (
            "leave the operation out, or sum up into another variable and add that in a function of its own"
        )
        warn(definition, said, remedy)


def warn(definition: Definition, said: Sequence[str], remedy: str) -> None:
    """Warn once for a function, at the script's line."""
    lines = [f"{definition.name!r} does not give the numbers of one process:", *said, f"-> {remedy}"]
    warnings.warn("\n".join(lines), SynkWarning, stacklevel=stacklevel())


def misdeclared(definition: Definition) -> list[WrongDeclaration]:
    """Return which outputs are declared by an operation that is known to be wrong."""
    judged = [
        (f"output {k} ({describe(output)}), declared {mode!r}", output, mode)
        for k, (output, mode) in enumerate(zip(definition.outputs, definition.output_modes, strict=True))
        if mode is not UNDECLARED and plain_mode(mode) not in RANKS_OWN
    ]
    return findings(definition, judged)


def plain_mode(mode: Any) -> Any:
    """Return an operation without the prefix that asks for the path by the host."""
    return mode.removeprefix("c_") if isinstance(mode, str) else mode


def findings(definition: Definition, judged: list[tuple[str, Variable, Any]]) -> list[WrongDeclaration]:
    """Return which of (description, result, operation) are known to give another number than one process."""
    # Whose script lets ranks meet inside the graph knows what each has.
    judged = [one for one in judged if not ranks_meet([one[1]])]
    if not judged or not (definition.inputs or definition.sliceables):
        return []  # what ranks have of their own is all there is to combine
    written = [result for _, result, _ in judged]
    marks = [node.outputs[0] for node in topological(written) if isinstance(node.op, Addend)]
    addends = {mark: mark.type() for mark in marks}  # which add up, whatever is in them
    written = substitute(written, addends)
    completion = Completion(known_relations(definition, written) | dict.fromkeys(addends.values(), SUM))
    completion.walk(written)
    local = [*map(completion.local, written)]
    growths = growth_of([value for value, _ in local], completion, written)
    found = []
    for (what, _, mode), result, (_, relation), growth in zip(judged, written, local, growths, strict=True):
        verdict = judge(relation, growth, plain_mode(mode), result)
        if verdict is None and plain_mode(mode) == "prod":
            verdict = judge_factors(result, completion)
        if verdict is not None:
            found.append(WrongDeclaration(what, *verdict))
    return found


def judge(
    relation: Relation, growth: Growth, mode: str, result: Variable | None = None
) -> tuple[str, str | None] | None:
    """Return why an operation does not give the value of one process, and which one does; None if it may."""
    if growth.apart:
        return "it is computed from a sum over all rows, of which each rank adds up its own only", None
    if isinstance(rows := as_rows(relation), Rows):
        return "it has values for each row", None if rows.axis else "gather"
    if isinstance(relation, Partial) and relation != SUM:
        boolean = getattr(getattr(result, "type", None), "dtype", None) == "bool"
        right = {relation.op, "prod"} if boolean and relation.op == "min" else {relation.op}
        if mode in right:
            return None
        return f"it is {KINDS[relation.op]} of each rank's rows", relation.op
    if isinstance(relation, Count) and mode not in ("avg", "sum"):
        return None  # how many rows the ranks have is asked for
    if relation == SUM or isinstance(relation, Count):
        return of_degrees(growth.degrees, mode)
    if relation == SAME and not growth.total:
        if growth.degrees == {0} and mode in ("min", "max"):
            return None
        if growth.degrees == {0} and mode != "avg":
            return f"every rank has the same, and {mode!r} counts it once for each rank", "avg"
        if mode in ("avg", "sum"):
            return of_degrees(growth.degrees, mode)
    return None


def judge_factors(product: Variable, completion: Completion) -> tuple[str, str | None] | None:
    """Return as `judge` of a product over rows of which a factor is none, as parameters are."""
    node = product.owner
    if node is None or not isinstance(getattr(node.op, "scalar_op", None), ps.Mul | ps.TrueDiv):
        return None
    if not any(completion.local(one).relation == Partial("prod") for one in node.inputs):
        return None
    for factor in node.inputs:
        local = completion.local(factor)
        if local.relation == SAME and local.value is factor and not is_one(factor):
            return f"it multiplies a product over each rank's rows by {describe(factor)}, which is none", None
    return None


def is_one(variable: Variable) -> bool:
    """Tell whether a variable is 1 everywhere, by a constant."""
    return isinstance(variable, Constant) and bool((variable.data == 1).all())


def of_degrees(degrees: frozenset[int] | None, mode: str) -> tuple[str, str | None] | None:
    """Return as `judge` of a value that grows with the number of rows by these degrees."""
    if degrees is None:
        return None if mode in ("avg", "sum") else ("it is a part of a sum over rows", None)
    if degrees == {1}:
        return None if mode == "sum" else ("it is a sum over each rank's rows", "sum")
    if degrees == {0}:
        return None if mode == "avg" else ("it is a mean over each rank's rows", "avg")
    if degrees == {0, 1}:
        return "it adds a sum over each rank's rows to what is no such sum, as means and parameters are", None
    return "it is no sum, nor mean, of what is known of each row", None


# --- collectives that the user wrote -----------------------------------------------------------------


def warn_of_sums(definition: Definition) -> None:
    """Warn once for a function of sums over ranks of what all ranks have alike."""
    sums = sums_of_equals(definition)
    if sums:
        text = (
            f"{definition.name!r} adds up over ranks what all of them have alike: {', '.join(sums)}; leave "
            "it out: without an operation it changes nothing, in other results it counts once for each rank"
        )
        warnings.warn(text, SynkWarning, stacklevel=stacklevel())


def sums_of_equals(definition: Definition) -> list[str]:
    """Return each sum over ranks, in the graph, of a value that all ranks have alike.

    What shared variables hold may differ by rank, so a value that depends on one is not known to be alike.
    """
    results = [*definition.outputs, *(update.value for update in definition.updates)]
    nodes = [
        node
        for node in topological(results)
        if isinstance(node.op, AllReduceOp)
        and node.op.op == "sum"
        and hasattr(node.outputs[0].tag, "of_script")
    ]
    if not nodes:
        return []
    completion = Completion(known_relations(definition, results))
    said = []
    for node in nodes:
        for value in node.inputs[:-1]:
            completion.walk([value])
            if completion.local(value).relation == SAME and not of_shared(value):
                said.append(f'all_reduce({describe(value)}, "sum")')
    return list(dict.fromkeys(said))


def of_shared(variable: Variable) -> bool:
    """Tell whether a value depends on shared variables of the user's, or on what others of the ranks have."""
    return any(
        isinstance(one, SharedVariable) and (one is ranks or not isinstance(one.type, RandomType))
        for one in ancestors([variable])
    )
