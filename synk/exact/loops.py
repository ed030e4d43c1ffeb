"""Decide how a Scan (a loop) runs on ranks, each of which has some of the rows.

    relations of sequences, states, constants -> those inside a step, until they stay -> each rank's Scan

Values that have rows along an axis keep each rank's own rows inside the steps. A state that adds up over rows
stays in parts, one on each rank, until the loop is over. Where a step needs the whole sum, the step before it
adds the parts up with a collective. Rows are never gathered inside a loop: if a step would need that of a
state, all inputs are completed before the loop instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan

from synk.compile.compat import plain_graph
from synk.exact.joined import joined
from synk.exact.local_values import Local
from synk.exact.loop_step import (
    Impossible,
    Inside,
    Needed,
    as_it_is,
    of_any_length,
    outside,
    whole_steps,
    within,
)
from synk.exact.rules.relations import SAME, STREAM, Own, Partial, Relation, Rows, Stream
from synk.exact.rules.table import Outcome, Rebuilt, Relations, relate
from synk.exact.run_values import OF_THE_RUN


@relate.register(Scan)
def scan(op: Scan, node: Apply, given: Relations) -> Outcome:
    """Let each rank run the loop on its own rows if the steps allow that; otherwise complete all inputs."""
    if {*given} <= {SAME, STREAM}:
        return None  # draws only: one collective after the loop does, instead of one at each draw
    try:
        return LoopRelations(op, node, given).outcome()
    except Impossible:
        return None


@dataclass(eq=False)
class State:
    """A state that a loop hands from one step to the next."""

    outer: Variable
    given: Relation  # of the outer variable
    at_first: Relation  # of the state before the first step
    ins: Sequence[Variable]  # the step's inputs for it, one for each earlier step that it reads
    outs: Sequence[Variable]  # the step's outputs for it
    complete: bool = False  # whether steps need one process's value of it

    def __post_init__(self) -> None:
        self.relation = self.at_first  # of all steps' values, as found so far


class LoopRelations:
    """A search for the relations of a Scan's inputs, states and outputs that fit all its steps.

    It starts from the relations before the first step, finds those after a step, and repeats that until they
    no longer change.
    """

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
        """Search until the relations of states no longer change; return what the rule answers."""
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
        """Return the graph of a step, whose inputs have the relations that were found so far."""
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
        """Return the relation that a state has before the first step and after every step.

        Raises Impossible if no single relation is right for all of them.
        """
        found = {state.relation, *[shown(inside.relation(variable)) for variable in state.outs]} - {SAME}
        if state.complete:
            found = {one for one in found if not isinstance(one, Partial)}
        if not found:
            return SAME
        relation = found.pop()
        if found or (isinstance(relation, Own) and isinstance(state.given, Rows | Partial)):
            raise Impossible
        return relation

    def _complete(self, needed: Collection[Variable]) -> None:
        """Note that steps need one process's value of these inputs of a step.

        Sequences and constants are completed before the loop, states by the step before.
        """
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
        """Return the outputs of a step as this rank computes them."""
        wanted = [within(state.relation) for state in self._states for _ in state.outs]
        collected = self._op.inner_nitsot_outs(self._graph.outputs)
        self._collected = [outside(inside.relation(variable)) for variable in collected]
        wanted += [within(relation) for relation in self._collected]
        wanted += [state.relation for state in self._untraced]
        wanted += [SAME] * self._op.info.as_while
        values = [
            inside.local(variable).value if isinstance(relation, Own) else inside.wanted(variable, relation)
            for variable, relation in zip(self._graph.outputs, wanted, strict=True)
        ]
        return joined(values)

    def _rebuilt(self, inside: Inside, outputs: Sequence[Variable]) -> Rebuilt:
        """Return the Scan that a rank runs, with what its inputs must be and what its outputs are."""
        op, inputs = self._op, self._graph.inputs
        numbers = [number for number in OF_THE_RUN if number in set(ancestors(outputs))]
        own_numbers = [number.type() for number in numbers]
        outputs = clone_replace(outputs, dict(zip(numbers, own_numbers, strict=True)))

        def with_whole(pairs: Sequence[tuple[Variable, Relation]], inner: Sequence[Variable]) -> Any:
            """Return sequences, or constants, as inputs of the loop with their relations, and of a step.

            An input of which steps also need one process's value is there a second time, complete, at the
            end.
            """
            values = [self._known[variable].value for variable in inner]
            more = [k for k, value in enumerate(values) if value in inside.complete_inputs]
            outer = [*pairs, *((pairs[k][0], SAME) for k in more)]
            return outer, [*values, *(inside.complete_inputs[values[k]] for k in more)]

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
        # A Scan's outputs are states with a trace, collected values, and states without a trace, in this
        # order.
        results = [state.relation for state in self._states] + self._collected
        results += [state.relation for state in self._untraced]
        return Rebuilt(wanted, results, lambda values: rebuilt(*values, return_list=True))


def singles(variables: Sequence[Variable]) -> list[list[Variable]]:
    """Return a list of one element for each variable."""
    return [[variable] for variable in variables]
