"""Say how each result of a function is combined, why, and what that costs: `Function.explain`.

Definition, as written; Definition, as computed -> explain -> lines of text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.compile.programs.graphs.origin import place_of
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.collectives.collectives import AllGatherOp, AllReduceOp
from synk.exact.completion import Completion
from synk.exact.definition import UNDECLARED, Definition
from synk.exact.results import known_relations
from synk.exact.rules.relations import Own
from synk.exact.run_values import describe
from synk.exact.shapes import Shape, known_shapes, n_bytes

N_PLACES = 3  # of the script, that are named for one collective

COMBINED = {
    "sum": "a sum over each rank's rows; they are added up as the call returns",
    "prod": "a product over each rank's rows; they are multiplied as the call returns",
    "min": "the smallest of each rank's rows; the smallest of those is taken as the call returns",
    "max": "the largest of each rank's rows; the largest of those is taken as the call returns",
}


class ExplainedResult(NamedTuple):
    """One result in the explanation: the way in which the ranks combine it, and the script's line for it."""

    kind: str  # "output" or "update"
    name: str
    text: str
    place: str  # in the script; "" where it is not known


def explain(written: Definition, computed: Definition) -> list[str]:
    """Return lines about the outputs and updates of a function, then about its collectives."""
    of_ranks = Explanation(written, computed)
    return [
        of_ranks.headline(),
        *(f"  {line}" for line in in_groups([*of_ranks.outputs(), *of_ranks.updates()])),
        *(f"  {line}" for line in of_ranks.declarations()),
        *(f"  {line}" for line in of_ranks.cost()),
    ]


def gathers(written: Definition, computed: Definition) -> list[str]:
    """Return a line for each collective that gives every rank all rows of something."""
    return list(Explanation(written, computed).gathers())


class Explanation:
    """The lines about one function."""

    def __init__(self, written: Definition, computed: Definition):
        self._written, self._computed = written, computed
        results = computed.results
        of_user = written.results
        own = {node.op for node in topological(of_user) if isinstance(node.op, CollectiveOp)}
        nodes = topological(results)
        self._of_user = [node for node in nodes if isinstance(node.op, CollectiveOp) and node.op in own]
        self._inserted = [node for node in nodes if isinstance(node.op, CollectiveOp) and node.op not in own]
        self._readers: dict[Variable, list[Apply]] = {}
        for node in nodes:
            for variable in node.inputs:
                self._readers.setdefault(variable, []).append(node)
        self._behind = meetings_behind(nodes, self._inserted)
        self._completion = Completion(known_relations(written, of_user))
        self._completion.walk(of_user)
        self._results, self._of_definition = results, of_user

    def headline(self) -> str:
        """Return the function's name and inputs."""
        scattered, broadcast = self._written.inputs, self._written.bcast_inputs
        parts = [f"rows of {names(scattered)} scattered"] if scattered else []
        parts += [f"{names(broadcast)} whole on every rank"] if broadcast else []
        parts += (
            [f"{names(self._written.sliceables)} in each rank's rows"] if self._written.sliceables else []
        )
        return f"{self._written.name!r}: {', '.join(parts) or 'nothing is scattered'}"

    # --- results -----------------------------------------------------------------------------------

    def outputs(self) -> Iterator[ExplainedResult]:
        """Yield how each output is combined."""
        modes = zip(self._written.output_modes, self._computed.output_modes, strict=True)
        for k, (variable, (declared, mode)) in enumerate(zip(self._written.outputs, modes, strict=True)):
            if declared is not UNDECLARED:
                text = f"declared {declared!r} of what each rank computes from its own rows"
                text += self._met(self._computed.outputs[k])
            else:
                text = self._undeclared(
                    variable, self._computed.outputs[k], mode, self._computed.output_axes[k]
                )
            name = f"{k} ({describe(variable)})" if variable.name else str(k)
            yield ExplainedResult("output", name, text, place_of(variable.owner))

    def updates(self) -> Iterator[ExplainedResult]:
        """Yield how each update is made."""
        for update, made in zip(self._written.updates, self._computed.updates, strict=True):
            if isinstance(update.variable.type, RandomType):
                text = "each rank's own stream of random numbers"
            elif update.mode is not UNDECLARED:
                text = f"declared {update.mode!r} over slices of what each rank computes from its own rows"
                text += self._met(made.value)
            else:
                text = self._same(made.value, update.value)
            yield ExplainedResult(
                "update", f"of {describe(update.variable)}", text, place_of(update.value.owner)
            )

    def _undeclared(self, variable: Variable, value: Variable, mode: Any, axis: int) -> str:
        if mode == "gather":
            return f"each rank's rows; they are joined along axis {axis} as the call returns" + self._met(
                value
            )
        if mode in COMBINED:
            return COMBINED[mode] + self._met(value)
        return self._same(value, variable)

    def _same(self, value: Variable, written: Variable) -> str:
        relation = self._completion.relation(written)
        if isinstance(relation, Own):
            return f"declared each rank's own by {relation.why}; averaged over rows" + self._met(value)
        met = self._met(value)
        return f"the same on every rank{met}" if met else "the same on every rank, without a collective"

    def _met(self, value: Variable) -> str:
        """Return the words that name the collectives on which a value depends, or "" if there are none."""
        numbers = sorted(self._inserted.index(node) + 1 for node in self._behind.get(value, ()))
        if not numbers:
            return ""
        return f", computed after collective{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"

    def declarations(self) -> Iterator[str]:
        """Yield a line for each declaration in the graph that a value is each rank's own (see `own`)."""
        relations = (self._completion.relation(one) for one in ancestors(self._of_definition))
        for why in dict.fromkeys(relation.why for relation in relations if isinstance(relation, Own)):
            yield f"declared by the graph: {why}; what depends on that is not one process's"

    # --- cost --------------------------------------------------------------------------------------

    def cost(self) -> Iterator[str]:
        """Yield a line per inserted collective: its bytes, and the Op that needs it; then their number."""
        shapes = self._shapes()
        for number, node in enumerate(self._inserted, start=1):
            yield f"collective {number}: {self._collective(node, shapes)}"
        if self._of_user:
            written = ", ".join(dict.fromkeys(str(node.op) for node in self._of_user))
            yield f"{counted(len(self._of_user))} as written: {written}"
        n = len(self._inserted) + len(self._of_user)
        yield f"a call has {counted(n)} in the graph" if n else "a call has no collective in the graph"

    def gathers(self) -> Iterator[str]:
        """Yield a line for each collective that gathers rows on every rank, with the Op that needs them."""
        shapes = self._shapes()
        yield from (
            self._collective(node, shapes) for node in self._inserted if isinstance(node.op, AllGatherOp)
        )

    def _shapes(self) -> dict[Variable, Shape]:
        """Return the shapes of the inputs of inserted collectives, as far as they are known."""
        computed = self._computed
        updated = {update.value: shape_of(update.variable) for update in computed.updates}
        known = {value: shape for value, shape in updated.items() if shape is not None}
        of_rank = {*computed.inputs, *computed.sliceables}
        given = {value for node in self._inserted for value in node.inputs[:-1]}
        return known_shapes(self._results, known, of_rank, given) if given else {}

    def _collective(self, node: Apply, shapes: dict[Variable, Shape]) -> str:
        values = node.inputs[:-1]
        places = [self._reason(value, result) for value, result in zip(values, node.outputs, strict=False)]
        places = list(dict.fromkeys(places))
        more = len(places) - N_PLACES
        why = "; ".join(places[:N_PLACES]) + (f"; and {more} more" if more > 0 else "")
        if isinstance(node.op, AllGatherOp):
            name = f" of {describe(values[0])}" if values[0].name else ""
            size = row_size(values[0], shapes, node.op.axis)
            return f"all rows{name} gathered on every rank, {size}, for {why}"
        op = node.op.op if isinstance(node.op, AllReduceOp) else str(node.op)
        sizes = [n_bytes(value, shapes.get(value)) for value in values]
        unknown = sum(size is None for size in sizes)
        size = f"{sum(one for one in sizes if one is not None):,} bytes" if unknown < len(sizes) else ""
        size += (" and " if size else "") + f"{unknown} of unknown size" if unknown else ""
        return f"all-reduce by {op!r} of {len(values)} value{'s' * (len(values) > 1)}, {size}, for {why}"

    def _reason(self, value: Variable, result: Variable) -> str:
        """Return the Op that reads a collective's ``result``, and the line of the script that built it."""
        reader = next(iter(self._readers.get(result, ())), None)
        place = place_of(reader) or place_of(value.owner)
        name = "a result" if reader is None else str(reader.op)
        return f"{name} ({place})" if place else name


def meetings_behind(nodes: Sequence[Apply], meetings: Sequence[Apply]) -> dict[Variable, frozenset[Apply]]:
    """Return for each variable the nodes among ``meetings`` on which it depends.

    ``nodes`` are those of the graph in topological order; variables that depend on no meeting are left out.
    """
    wanted = set(meetings)
    behind: dict[Variable, frozenset[Apply]] = {}
    for node in nodes:
        of_inputs = [behind[variable] for variable in node.inputs if variable in behind]
        found = frozenset().union(*of_inputs, {node} if node in wanted else ())
        if found:
            behind.update(dict.fromkeys(node.outputs, found))
    return behind


def in_groups(results: Sequence[ExplainedResult]) -> Iterator[str]:
    """Yield a line for each group of results with the same kind and text."""
    groups: dict[tuple[str, str], list[ExplainedResult]] = {}
    for one in results:
        groups.setdefault((one.kind, one.text), []).append(one)
    for (kind, text), members in groups.items():
        if len(members) == 1:
            place = f" ({members[0].place})" if members[0].place else ""
            yield f"{kind} {members[0].name}: {text}{place}"
        elif kind == "output":
            yield f"outputs {by_line(members)}: {text}"
        else:
            named = ", ".join(one.name for one in members[:N_PLACES])
            more = f" and {len(members) - N_PLACES} more" if len(members) > N_PLACES else ""
            yield f"{kind}s {named}{more}: {text}"


def by_line(results: Sequence[ExplainedResult]) -> str:
    """Return the names of results, grouped by the line of the script that built them."""
    groups: dict[str, list[str]] = {}
    for one in results:
        groups.setdefault(one.place.partition(", ")[0], []).append(one.name)
    return "; ".join(", ".join(named) + (f" ({line})" if line else "") for line, named in groups.items())


def counted(n: int) -> str:
    """Return "1 collective", "2 collectives" and so on."""
    return f"{n} collective{'s' * (n > 1)}"


def names(variables: Sequence[Variable]) -> str:
    """Return the names of variables, separated by commas."""
    return ", ".join(map(describe, variables))


def shape_of(variable: Any) -> Shape | None:
    """Return the shape of a shared variable, None if it is no array."""
    value = variable.get_value(borrow=True)
    return value.shape if hasattr(value, "dtype") and hasattr(value, "shape") else None


def row_size(value: Any, shapes: dict[Variable, Shape], axis: int) -> str:
    """Return the size of a row along ``axis`` in words: bytes, or that it is unknown."""
    shape = shapes.get(value)
    row = None if shape is None else n_bytes(value, (*shape[:axis], *shape[axis + 1 :]))
    return "of unknown size" if row is None else f"{row:,} bytes a row"
