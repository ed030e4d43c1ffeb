"""Warn of outputs and updates whose declared operation gives another number than one process.

    Definition, as written -> misdeclared -> warn: one SynkWarning for a function, when it is built

There is a warning only if the number is known to differ: an operation may be right for reasons that a graph
does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytensor.scalar.basic as ps
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.compile.programs.graphs.serialize import topological
from synk.compile.programs.graphs.substitute import substitute
from synk.exact.collectives.collectives import AllReduceOp
from synk.exact.collectives.marks import Addend
from synk.exact.completion import Completion
from synk.exact.definition import UNDECLARED, Definition
from synk.exact.growth import Growth, growth_of
from synk.exact.local_values import is_filled_with
from synk.exact.parts import ranks_meet
from synk.exact.results import known_relations
from synk.exact.rules.relations import SAME, SUM, Count, Partial, Relation, Rows, as_rows
from synk.exact.run_values import describe, ranks
from synk.values.script_frames import warn_the_script

RANKS_OWN = (None, "gather")  # operations that return the ranks' own values, which are never wrong
REPEATED = ("it adds", "it multiplies")  # so begin reasons: a value that all ranks have counts once per rank
KINDS = {"prod": "the product", "max": "the largest", "min": "the smallest"}


class WrongDeclaration(NamedTuple):
    """A result whose declared operation gives another number than one process."""

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
    """Warn of updates declared "sum" or "prod" with a term, as the old value, that counts once per slice."""
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
    """Give one warning about a function, at the script's line that builds it."""
    lines = [f"{definition.name!r} does not give the numbers of one process:", *said, f"-> {remedy}"]
    warn_the_script("\n".join(lines))


def misdeclared(definition: Definition) -> list[WrongDeclaration]:
    """Return the outputs whose declared operation is known to give another number than one process."""
    judged = [
        (f"output {k} ({describe(output)}), declared {mode!r}", output, mode)
        for k, (output, mode) in enumerate(zip(definition.outputs, definition.output_modes, strict=True))
        if mode is not UNDECLARED and plain_mode(mode) not in RANKS_OWN
    ]
    return findings(definition, judged)


def plain_mode(mode: Any) -> Any:
    """Return an operation without the prefix "c_", which is ignored."""
    return mode.removeprefix("c_") if isinstance(mode, str) else mode


def findings(definition: Definition, judged: list[tuple[str, Variable, Any]]) -> list[WrongDeclaration]:
    """Return the results that are known to give another number than one process, of those in ``judged``.

    Each entry of ``judged`` is the result's description, its variable and its declared operation.
    """
    # A script with collectives in the graph is written for ranks, so its declarations are taken as meant.
    judged = [one for one in judged if not ranks_meet([one[1]])]
    if not judged or not (definition.inputs or definition.sliceables):
        return []  # without rows there is no value of one process to compare with
    written = [result for _, result, _ in judged]
    marks = [node.outputs[0] for node in topological(written) if isinstance(node.op, Addend)]
    addends = {mark: mark.type() for mark in marks}  # an `addend` is a part of a sum by definition
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
    """Return why an operation gives another value than one process, and the right one or None.

    Return None if the operation may be right.
    """
    if growth.nonlinear:
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
        return None  # the script asks for the ranks' numbers of rows
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
    """Return the verdict, as `judge` does, on a product over rows times a factor that is not per row.

    Each rank multiplies by the factor, so it counts once per rank.
    """
    node = product.owner
    if node is None or not isinstance(getattr(node.op, "scalar_op", None), ps.Mul | ps.TrueDiv):
        return None
    if not any(completion.relation(one) == Partial("prod") for one in node.inputs):
        return None
    for factor in node.inputs:
        local = completion.local(factor)
        if local.relation == SAME and local.value is factor and not is_filled_with(factor, 1):
            return f"it multiplies a product over each rank's rows by {describe(factor)}, which is none", None
    return None


def of_degrees(degrees: frozenset[int] | None, mode: str) -> tuple[str, str | None] | None:
    """Return the verdict, as `judge` does, on a value that grows with the number of rows by these degrees."""
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
    """Give one warning if the script's graph adds up over ranks a value that all ranks have alike."""
    sums = sums_of_equals(definition)
    if sums:
        text = (
            f"{definition.name!r} adds up over ranks what all of them have alike: {', '.join(sums)}; leave "
            "it out: without an operation it changes nothing, in other results it counts once for each rank"
        )
        warn_the_script(text)


def sums_of_equals(definition: Definition) -> list[str]:
    """Return the text of each `all_reduce` by "sum" in the script of a value that all ranks have alike.

    Shared variables may differ between ranks, so a value that depends on one is left out.
    """
    results = definition.results
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
            if completion.relation(value) == SAME and not of_shared(value):
                said.append(f'all_reduce({describe(value)}, "sum")')
    return list(dict.fromkeys(said))


def of_shared(variable: Variable) -> bool:
    """Tell whether a value depends on shared variables, other than random states, or on other ranks."""
    return any(
        isinstance(one, SharedVariable) and (one is ranks or not isinstance(one.type, RandomType))
        for one in ancestors([variable])
    )
