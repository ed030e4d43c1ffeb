"""Decide which float32 arrays are kept in 16 bits, and where they are converted.

Graphs stay float32, for PyTensor has no bfloat16; the program keeps some values of them in fewer bits.
Inputs, shared variables, updates and results stay as they are, so weights, optimiser state and losses are
float32. A result is of 16 bits if its node may give that and a product reads it, by itself or by way of
nodes that give 16 bits in turn. A reader that needs another width has a copy of the value, which is made
once, before its first reader, however many there are:

    Placement -> widths -> narrow -> Placement with casts among its steps, and what is stored how

A weight is an example: it is rounded once a call, and read by the products forward and backward.

Pure: graphs in, decisions out; ``dispatch.width`` says what Ops do about 16 bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from pytensor.graph.basic import Apply, Constant, Variable

from synk.compile.programs.passes.host_or_device import PlacedStep, Placement
from synk.compile.tables import WIDE, Width, is_float_array, width

FLOAT32 = "float32"

Round = Callable[[Apply, Callable, Sequence[bool], Sequence[bool]], Callable]


class Narrowed(NamedTuple):
    """A placement with casts, and the variables that are stored in 16 bits."""

    placed: Placement
    stored: Collection[Variable] = ()


def narrow(
    placed: Placement, outputs: Sequence[Variable], dtype: str, implement: Round, at_once: bool
) -> Narrowed:
    """Insert casts into a placement, and have nodes implemented for what they read and give then.

    ``implement(node, implementation, reads, gives)`` returns an implementation for a node of which some
    inputs or outputs, those that are true, are of 16 bits, ``dtype``. A value is converted before its first
    reader, or ``at_once``, where some nodes do not always run.
    """
    rules = _rules(placed)
    stored = widths(placed.steps, rules, {*outputs, *_crossing(placed), *placed.on_host})
    casts = _Casts(placed, stored, dtype)
    implementations = dict(placed.implementations)
    steps: list[PlacedStep] = []
    for step in placed.steps:
        if step.node is None:
            steps.append(step)
            continue
        reads = _reads(step.node, rules[step.node], stored)
        arguments = [casts.of(a, wanted) for a, wanted in zip(step.inputs, reads, strict=True)]
        gives = [variable in stored for variable in step.node.outputs]
        if True in (*reads, *gives):
            run = implementations[step.node]
            implementations[step.node] = implement(step.node, run, [r is True for r in reads], gives)
        steps += [*casts.new(), step._replace(inputs=arguments)]
    changed = placed._replace(
        steps=casts.at_once(steps) if at_once else steps,
        implementations=implementations,
        constants=[*placed.constants, *casts.of_constants],
    )
    return Narrowed(changed, stored)


def widths(
    steps: Sequence[PlacedStep], rules: Mapping[Apply, Width], wide: Collection[Variable]
) -> Collection[Variable]:
    """Return the results that are stored in 16 bits; those in ``wide`` are not.

    Forward, which may be: what nodes give from 16 bits. Backward, which of these serve: a product reads them,
    or a node that gives 16 bits. And what nothing but products reads is rounded where it is made.
    """
    nodes = [step.node for step in steps if step.node is not None]
    readers: dict[Variable, list[tuple[Apply, int]]] = defaultdict(list)
    for node in nodes:
        for position, variable in enumerate(node.inputs):
            readers[variable].append((node, position))

    def can(variable: Variable) -> bool:
        several = is_float_array(variable) and not all(variable.type.broadcastable)
        return several and variable not in wide

    def robust(node: Apply) -> list[Variable]:
        rule = rules[node]
        return [node.outputs[k] for k in rule.gives if k not in rule.delicate]

    may: set[Variable] = set()
    for node in nodes:
        rule = rules[node]
        if rule.wants or (rule.leads and all(node.inputs[k] in may for k in rule.leads)):
            may.update(filter(can, robust(node)))

    stored: set[Variable] = set()

    def serves(node: Apply, position: int) -> bool:
        rule = rules[node]
        passes = position in rule.takes or (rule.keeps and position == 0)
        return position in rule.wants or (passes and any(v in stored for v in robust(node)))

    def rounds(node: Apply, position: int) -> bool:
        rule = rules[node]
        same = rule.keeps and position == 0
        return position in rule.wants or (same and all(v in stored for v in node.outputs))

    for node in reversed(nodes):
        rule = rules[node]
        for output in [node.outputs[k] for k in rule.gives if can(node.outputs[k])]:
            reading = readers[output]
            useful = output in may and any(serves(*reader) for reader in reading)
            if useful or (rule.pulls and reading and all(rounds(*reader) for reader in reading)):
                stored.add(output)
    for node in nodes:  # what is a part of 16 bits already costs nothing to keep so
        if rules[node].keeps and node.inputs[0] in stored:
            stored.update(filter(can, node.outputs))
    return stored


def _rules(placed: Placement) -> dict[Apply, Width]:
    """Return the rule of each node."""
    rules = {}
    for node, implementation in placed.implementations.items():
        on_host: Sequence[Apply] = getattr(implementation, "host_nodes", ())
        rule = WIDE if on_host or node in placed.moved else width(node.op, node)
        rules[node] = rule if all(is_float_array(node.inputs[k]) for k in rule.wants) else WIDE
    return rules


def _crossing(placed: Placement) -> list[Variable]:
    """Return the values that go to the other side."""
    return [step.inputs[0] for step in placed.steps if step.node is None]


def _reads(node: Apply, rule: Width, stored: Collection[Variable]) -> list[bool | None]:
    """Tell for each input whether it is read in 16 bits; None where there is no choice."""
    reads: list[bool | None] = []
    for position, variable in enumerate(node.inputs):
        if not is_float_array(variable):
            reads.append(None)
        elif position in rule.wants:
            reads.append(True)
        elif position in rule.takes:
            reads.append(variable in stored)
        else:
            reads.append(rule.keeps and position == 0 and node.outputs[0] in stored)
    return reads


class _Casts:
    """The copies of values in the other width."""

    def __init__(self, placed: Placement, stored: Collection[Variable], dtype: str):
        self.of_constants: list[PlacedStep] = []  # casts that are done once, when the graph is compiled
        self._stored, self._dtype = stored, dtype
        self._fixed = {variable for step in placed.constants for variable in step.outputs}
        self._copies: dict[Variable, Variable] = {}
        self._new: list[PlacedStep] = []

    def of(self, variable: Variable, narrow: bool | None) -> Variable:
        """Return a variable itself if it is as wide as wanted, else its copy."""
        if narrow is None or narrow == (variable in self._stored):
            return variable
        if variable not in self._copies:
            copy = self._copies[variable] = variable.type()
            step = PlacedStep(None, [variable], [copy], self._dtype if narrow else FLOAT32)
            constant = isinstance(variable, Constant) or variable in self._fixed
            (self.of_constants if constant else self._new).append(step)
        return self._copies[variable]

    def new(self) -> list[PlacedStep]:
        """Return the steps of the copies that were asked for since the last time."""
        steps, self._new = self._new, []
        return steps

    def at_once(self, steps: Sequence[PlacedStep]) -> list[PlacedStep]:
        """Return the steps with each cast right behind what makes the value."""
        casts = {
            s.inputs[0]: s
            for s in steps
            if s.node is None and s.inputs[0] in self._copies and s.outputs[0] is self._copies[s.inputs[0]]
        }
        moved = {id(step) for step in casts.values()}
        made = {v for step in steps for v in step.outputs}
        ordered = [step for variable, step in casts.items() if variable not in made]
        for step in steps:
            if id(step) not in moved:
                ordered.append(step)
                ordered += [casts[variable] for variable in step.outputs if variable in casts]
        return ordered
