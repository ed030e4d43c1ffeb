"""Rules of Ops with a graph inside: loops, and graphs that are one Op.

    relations of sequences, states, constants -> inside, step by step, until they stay -> each rank's loop

Rows along an axis of what a step sees stay rows, and what a state adds up over rows stays a part of the sum
until the loop is over. A state that a step needs complete is completed by the step before, by a collective in
each. Nothing is gathered inside: where a step needs that of a state, everything is completed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.type import TensorType

from synk.arrays.variables import OF_THE_RUN, n_rows
from synk.compile.compat import plain_graph
from synk.compile.graphs.substitute import substitute
from synk.compile.rows.relations import (
    EACH,
    SAME,
    SUM,
    Count,
    Own,
    Partial,
    Relation,
    RowNumbers,
    Rows,
    Stream,
)
from synk.compile.rows.table import Instead, Outcome, Rebuilt, Relations, relate
from synk.functions.exact.completion import Completion
from synk.functions.exact.joined import joined
from synk.functions.exact.local_values import Local


@relate.register(OpFromGraph)
def graph_as_op(op: OpFromGraph, node: Apply, given: Relations) -> Outcome:
    """As the nodes inside of it."""
    graph = plain_graph(op)
    return Instead(substitute(graph.outputs, dict(zip(graph.inputs, node.inputs, strict=True))))


@relate.register(Einsum)
def einsum(op: Einsum, node: Apply, given: Relations) -> Outcome:
    """By the letter of the axis of rows: rows where the result has it, else a sum over them."""
    inputs, arrow, output = op.subscripts.partition("->")
    terms = inputs.split(",")
    rows = [
        (term[one.axis : one.axis + 1], one)
        for term, one in zip(terms, given, strict=False)
        if isinstance(one, Rows)
    ]
    letters = {letter for letter, _ in rows}
    if (
        not arrow
        or "." in op.subscripts
        or len(letters) != 1
        or any(term.count(*letters) > 1 for term in terms)
    ):
        return graph_as_op(op, node, given)
    (letter,), length = letters, rows[0][1].length
    wanted = [Rows(term.index(letter), length) if letter in term else SAME for term in terms]
    return wanted, [Rows(output.index(letter), length) if letter in output else SUM]


@relate.register(Scan)
def scan(op: Scan, node: Apply, given: Relations) -> Outcome:
    """A loop of each rank, if what it repeats allows that."""
    try:
        return Loop(op, node, given).outcome()
    except Impossible:
        return None


class Impossible(Exception):
    """A step needs more of other ranks than can be had inside of a loop."""


class Needed(Exception):
    """A step needs one process's value of the inputs ``args[0]``, or of what it makes of them alone."""


class Inside(Completion):
    """The graph of a step.

    Of the inputs ``passed``, which are no states, one process's value is an input, too, where it is needed.
    """

    def __init__(
        self,
        known: Sequence[Local],
        originals: Sequence[Variable],
        passed: Collection[Variable],
        at_once: Collection[Variable],
    ):
        super().__init__({n_rows: Count(EACH)}, at_once)
        self._parts = {local.value for local in known if isinstance(local.relation, Partial)}
        # What ranks have in parts before a step is not completed for the sake of what a step completes.
        self._depth.update(dict.fromkeys(self._parts, inf))
        self._inputs = {local.value for local in known}
        self._passed = passed
        self._local.update(zip(originals, known, strict=True))
        self._local.update((local.value, local) for local in known)
        self.whole: dict[Variable, Variable] = {}

    def _completed(self, value: Variable, given: Relation) -> Variable:
        if value in self._inputs and not isinstance(given, Own):
            return self._whole(value)
        if isinstance(given, Own):
            raise Impossible
        if isinstance(given, Partial) and self._depth.get(value) == inf:
            raise Needed(self._parts & set(ancestors([value])))
        return super()._completed(value, given)

    def _meeting(self, value: Variable, given: Rows) -> Variable:
        raise Impossible

    def _of_all_ranks(self, value: Variable) -> Variable:
        return self._whole(value) if value in self._inputs else super()._of_all_ranks(value)

    def _total(self, local: Local, axis: int) -> Variable:
        relation: Any = local.relation
        if relation.length != EACH:
            raise Impossible
        return super()._total(local, axis)

    def _whole(self, value: Variable) -> Variable:
        if value not in self._passed:
            raise Needed({value})
        return self.whole.setdefault(value, value.type())


@dataclass(eq=False)
class State:
    """A state that a loop hands from step to step."""

    outer: Variable
    given: Relation  # of the outer variable
    at_first: Relation  # of what steps begin with
    ins: Sequence[Variable]  # as a step reads it
    outs: Sequence[Variable]
    complete: bool = False  # steps need it complete

    def __post_init__(self) -> None:
        self.relation = self.at_first  # of all steps' values, as far as is known


class Loop:
    """The relations of a Scan's inputs and outputs, found by what they are inside."""

    def __init__(self, op: Scan, node: Apply, given: Relations):
        self._op, self._graph = op, plain_graph(op)
        self._at_once: set[Variable] = set()
        self._steps = node.inputs[0]
        self._lengths = op.outer_nitsot(node.inputs)
        of = dict(zip(node.inputs, given, strict=True)).__getitem__
        ins, outs = self._graph.inputs, self._graph.outputs
        self._sequences = [(variable, whole_steps(of(variable))) for variable in op.outer_seqs(node.inputs)]
        self._constants = [(variable, of(variable)) for variable in op.outer_non_seqs(node.inputs)]
        grouped = [
            (op.outer_mitmot, op.inner_mitmot_grouped(ins), op.inner_mitmot_outs_grouped(outs)),
            (op.outer_mitsot, op.inner_mitsot_grouped(ins), singles(op.inner_mitsot_outs(outs))),
            (op.outer_sitsot, singles(op.inner_sitsot(ins)), singles(op.inner_sitsot_outs(outs))),
        ]
        self._states = [
            State(outer, of(outer), whole_steps(of(outer)), read, written)
            for outers, reads, writes in grouped
            for outer, read, written in zip(outers(node.inputs), reads, writes, strict=True)
        ]
        self._untraced = [
            State(outer, of(outer), of(outer), [read], [written])
            for outer, read, written in zip(
                op.outer_untraced_sit_sot(node.inputs),
                op.inner_untraced_sit_sot(ins),
                op.inner_untraced_sit_sot_outs(outs),
                strict=True,
            )
        ]

    def outcome(self) -> Outcome:
        """Return what the rule of a Scan returns."""
        while True:
            inside = self._inside()
            try:
                inside.walk(self._graph.outputs)
                found = [self._found(state, inside, outside) for state in self._states]
                found += [self._found(state, inside, as_it_is) for state in self._untraced]
                states = [*self._states, *self._untraced]
                if found == [state.relation for state in states]:
                    outputs = self._outputs(inside)
                    completed = inside.completed_parts(self._graph.outputs)
                    if completed <= self._at_once:
                        return self._rebuilt(inside, outputs)
                    self._at_once |= completed
                    found = [state.at_first for state in states]
            except Needed as needed:
                self._complete(needed.args[0])
                continue
            for state, relation in zip(states, found, strict=True):
                state.relation = relation

    # --- relations -----------------------------------------------------------------------------------

    def _inside(self) -> Inside:
        """Return the graph of a step by what is known of its inputs."""
        op, inputs = self._op, self._graph.inputs
        relations = [within(relation) for _, relation in self._sequences]
        relations += [within(state.relation) for state in self._states for _ in state.ins]
        relations += [state.relation for state in self._untraced]
        relations += [relation for _, relation in self._constants]
        known = [
            Local(of_any_length(variable, relation), relation)
            for variable, relation in zip(inputs, relations, strict=True)
        ]
        self._known = dict(zip(inputs, known, strict=True))
        passed = [*op.inner_seqs(inputs), *op.inner_non_seqs(inputs)]
        return Inside(known, inputs, {self._known[variable].value for variable in passed}, self._at_once)

    def _found(self, state: State, inside: Inside, shown: Callable[[Relation], Relation]) -> Relation:
        """Return the relation that a state has, before the first step and after each."""
        found = {state.relation, *[shown(inside.local(variable).relation) for variable in state.outs]} - {
            SAME
        }
        if state.complete:
            found = {one for one in found if not isinstance(one, Partial)}
        if not found:
            return SAME
        relation = found.pop()
        if found or (isinstance(relation, Own) and isinstance(state.given, Rows | Partial)):
            raise Impossible
        return relation

    def _complete(self, needed: Collection[Variable]) -> None:
        """Note that steps need states, or other inputs, complete."""
        for state in (*self._states, *self._untraced):
            if any(self._known[read].value in needed for read in state.ins):
                if not isinstance(state.relation, Partial):
                    raise Impossible
                state.complete, state.at_first, state.relation = True, SAME, SAME
        op, inputs = self._op, self._graph.inputs
        for pairs, inner in (
            (self._sequences, op.inner_seqs(inputs)),
            (self._constants, op.inner_non_seqs(inputs)),
        ):
            for k, variable in enumerate(inner):
                if self._known[variable].value in needed:
                    pairs[k] = pairs[k][0], SAME

    # --- the loop of a rank ----------------------------------------------------------------------------

    def _outputs(self, inside: Inside) -> list[Variable]:
        """Return what a step of this rank computes."""
        wanted = [within(state.relation) for state in self._states for _ in state.outs]
        collected = self._op.inner_nitsot_outs(self._graph.outputs)
        self._collected = [outside(inside.local(variable).relation) for variable in collected]
        wanted += [within(relation) for relation in self._collected]
        wanted += [state.relation for state in self._untraced]
        wanted += [SAME] * self._op.info.as_while
        values = [
            inside.local(variable).value if isinstance(relation, Own) else inside.wanted(variable, relation)
            for variable, relation in zip(self._graph.outputs, wanted, strict=True)
        ]
        self._draw = next(filter(None, map(inside.draws.get, values)), None)
        if self._op.info.as_while and values[-1] in inside.draws:
            raise Impossible  # ranks would leave at different steps
        return joined(values)

    def _rebuilt(self, inside: Inside, outputs: Sequence[Variable]) -> Rebuilt:
        """Return the loop with the inputs that its steps need on a rank."""
        op, inputs = self._op, self._graph.inputs
        numbers = [number for number in OF_THE_RUN if number in set(ancestors(outputs))]
        own_numbers = [number.type() for number in numbers]
        outputs = clone_replace(outputs, dict(zip(numbers, own_numbers, strict=True)))

        def with_whole(pairs: Sequence[tuple[Variable, Relation]], inner: Sequence[Variable]) -> Any:
            """Return inputs of the loop and of a step: those of one process's values behind the others."""
            values = [self._known[variable].value for variable in inner]
            more = [k for k, value in enumerate(values) if value in inside.whole]
            outer = [*pairs, *((pairs[k][0], SAME) for k in more)]
            return outer, [*values, *(inside.whole[values[k]] for k in more)]

        sequences, seen = with_whole(self._sequences, op.inner_seqs(inputs))
        constants, fixed = with_whole(self._constants, op.inner_non_seqs(inputs))
        states = [*self._states, *self._untraced]
        read = [self._known[variable].value for state in states for variable in state.ins]
        info = replace(op.info, n_seqs=len(seen), n_non_seqs=len(fixed) + len(numbers))
        rebuilt = Scan(
            [*seen, *read, *fixed, *own_numbers],
            outputs,
            info,
            mode=op.mode,
            truncate_gradient=op.truncate_gradient,
            name=op.name,
            profile=op.profile,
            allow_gc=op.allow_gc,
            strict=op.strict,
        )
        wanted = [
            (self._steps, SAME),
            *sequences,
            *[
                (state.outer, state.given if isinstance(state.relation, Own | Stream) else state.relation)
                for state in states
            ],
            *[(length, SAME) for length in self._lengths],
            *constants,
            *[(number, None) for number in numbers],
        ]
        # Outputs: states with a trace, what is collected, states without one.
        results = [state.relation for state in self._states] + self._collected
        results += [state.relation for state in self._untraced]
        return Rebuilt(wanted, results, lambda values: rebuilt(*values, return_list=True), self._draw)


def singles(variables: Sequence[Variable]) -> list[list[Variable]]:
    """Return a list of one for each variable."""
    return [[variable] for variable in variables]


def of_any_length(variable: Variable, relation: Relation) -> Variable:
    """Return an input like ``variable``, with any number of rows."""
    if not isinstance(relation, Rows) or variable.type.shape[relation.axis] is None:
        return variable
    shape = [None if axis == relation.axis else n for axis, n in enumerate(variable.type.shape)]
    return TensorType(variable.type.dtype, shape)()


def whole_steps(relation: Relation) -> Relation:
    """Return the relation of which a step sees an element: where rows are steps, all ranks go through all."""
    return relation if isinstance(relation, Partial | Own) or getattr(relation, "axis", 0) > 0 else SAME


def within(relation: Relation) -> Relation:
    """Return the relation of one step's element of what has ``relation``."""
    return Rows(relation.axis - 1, relation.length) if isinstance(relation, Rows) else relation


def outside(relation: Relation) -> Relation:
    """Return the relation of all steps' values together."""
    if isinstance(relation, RowNumbers):
        return Rows(1, relation.length)
    return Rows(relation.axis + 1, relation.length) if isinstance(relation, Rows) else as_it_is(relation)


def as_it_is(relation: Relation) -> Relation:
    """Return the relation of a value, of a number of rows that of all ranks' number."""
    return relation if isinstance(relation, Partial | Own | Rows | Stream) else SAME
