"""Decide which float32 arrays are kept in 16 bits, and where they are converted.

Graphs stay float32, since PyTensor has no bfloat16, but the program stores some of their values in 16 bits.
Inputs, shared variables, updates and outputs keep their dtype, so weights, optimiser state and losses are
float32. The result of a node is stored in 16 bits if its Op may return 16 bits, and a matrix product reads
it, directly or through nodes that return 16 bits, too. A reader that needs the other width reads a converted
copy, which is made once, before its first reader:

    Placement -> widths -> narrow -> Placement with casts among its steps, and the variables stored in 16 bits

For example, a weight is rounded once a call, and the products of forward and backward read that copy.

Nothing is computed here; `synk.compile.dispatch.storage_width` says which Ops may read and return 16 bits.
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
    """A placement to which casts were added, and the variables that are stored in 16 bits."""

    placed: Placement
    stored: Collection[Variable] = ()


def narrow(
    placed: Placement, outputs: Sequence[Variable], dtype: str, implement: Round, at_once: bool
) -> Narrowed:
    """Insert casts into a placement, and replace implementations of nodes that read or return 16 bits.

    ``implement(node, implementation, reads, gives)`` returns the implementation of a node whose inputs and
    outputs have 16 bits, ``dtype``, where ``reads`` and ``gives`` are true. A value is converted before its
    first reader; with ``at_once``, right after it is computed, because some readers do not always run.
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
    """Return the variables to store in 16 bits; those in ``wide`` must stay float32.

    A walk forward finds the variables that may have 16 bits: results of products, and of nodes that return 16
    bits when they read them. A walk backward keeps those that are of use: a product reads them, or a node
    that stores its result in 16 bits. A variable that only products read is stored in 16 bits as well.
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
        if rule.rounds or (rule.requires and all(node.inputs[k] in may for k in rule.requires)):
            may.update(filter(can, robust(node)))

    stored: set[Variable] = set()

    def serves(node: Apply, position: int) -> bool:
        rule = rules[node]
        passes = position in rule.takes or (rule.keeps and position == 0)
        return position in rule.rounds or (passes and any(v in stored for v in robust(node)))

    def rounds(node: Apply, position: int) -> bool:
        rule = rules[node]
        same = rule.keeps and position == 0
        return position in rule.rounds or (same and all(v in stored for v in node.outputs))

    for node in reversed(nodes):
        rule = rules[node]
        for output in [node.outputs[k] for k in rule.gives if can(node.outputs[k])]:
            reading = readers[output]
            useful = output in may and any(serves(*reader) for reader in reading)
            if useful or (rule.commutes and reading and all(rounds(*reader) for reader in reading)):
                stored.add(output)
    for node in nodes:  # a part or view of an array of 16 bits keeps them at no cost
        if rules[node].keeps and node.inputs[0] in stored:
            stored.update(filter(can, node.outputs))
    return stored


def _rules(placed: Placement) -> dict[Apply, Width]:
    """Return for each node which inputs and outputs may have 16 bits."""
    rules = {}
    for node, implementation in placed.implementations.items():
        on_host: Sequence[Apply] = getattr(implementation, "host_nodes", ())
        rule = WIDE if on_host or node in placed.moved else width(node.op, node)
        rules[node] = rule if all(is_float_array(node.inputs[k]) for k in rule.rounds) else WIDE
    return rules


def _crossing(placed: Placement) -> list[Variable]:
    """Return the variables that are copied between host and device."""
    return [step.inputs[0] for step in placed.steps if step.node is None]


def _reads(node: Apply, rule: Width, stored: Collection[Variable]) -> list[bool | None]:
    """Return for each input whether it is read in 16 bits; None for inputs that are no float32 arrays."""
    reads: list[bool | None] = []
    for position, variable in enumerate(node.inputs):
        if not is_float_array(variable):
            reads.append(None)
        elif position in rule.rounds:
            reads.append(True)
        elif position in rule.takes:
            reads.append(variable in stored)
        else:
            reads.append(rule.keeps and position == 0 and node.outputs[0] in stored)
    return reads


class _Casts:
    """The copies of variables, converted to the other width, that readers of that width need."""

    def __init__(self, placed: Placement, stored: Collection[Variable], dtype: str):
        self.of_constants: list[PlacedStep] = []  # casts that are done once, when the graph is compiled
        self._stored, self._dtype = stored, dtype
        self._fixed = {variable for step in placed.constants for variable in step.outputs}
        self._copies: dict[Variable, Variable] = {}
        self._new: list[PlacedStep] = []

    def of(self, variable: Variable, narrow: bool | None) -> Variable:
        """Return a variable if it has the wanted width, else its converted copy."""
        if narrow is None or narrow == (variable in self._stored):
            return variable
        if variable not in self._copies:
            copy = self._copies[variable] = variable.type()
            step = PlacedStep(None, [variable], [copy], self._dtype if narrow else FLOAT32)
            constant = isinstance(variable, Constant) or variable in self._fixed
            (self.of_constants if constant else self._new).append(step)
        return self._copies[variable]

    def new(self) -> list[PlacedStep]:
        """Return the steps that make the copies which `of` has added since the last call."""
        steps, self._new = self._new, []
        return steps

    def at_once(self, steps: Sequence[PlacedStep]) -> list[PlacedStep]:
        """Return the steps with each cast moved right behind the step that computes its input."""
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
