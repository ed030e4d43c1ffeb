"""Make the plan of a program: each pass makes one decision, given those of the passes before it.

    ProgramPlan, as requested -> decide_all: PASSES in turn -> ProgramPlan with all decisions -> ProgramWriter

`PASSES` is the list of them; ``docs/linker.rst`` has it too, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.programs.passes.aliases import Aliases
from synk.compile.programs.passes.decisions import ProgramPlan
from synk.compile.programs.passes.destination import find_destinations
from synk.compile.programs.passes.finish import find_finished
from synk.compile.programs.passes.host_or_device import place, stay
from synk.compile.programs.passes.lazy import plan_lazy
from synk.compile.programs.passes.narrow import narrow
from synk.compile.programs.passes.reuse import find_reuse
from synk.compile.tables import HOST, array_funcify, array_rounded


def decide_all(plan: ProgramPlan) -> ProgramPlan:
    """Let each pass add its decision to a plan, in order; return the plan."""
    for decide in PASSES.values():
        decide(plan)
    return plan


def _lazy(plan: ProgramPlan) -> None:
    plan.nodes, plan.guards = plan_lazy(plan.fgraph, plan.order)


def _place(plan: ProgramPlan) -> None:
    def implement(node: Apply, side: str) -> Callable:
        return array_funcify(node.op, node, np if side == HOST else plan.xp)

    inputs, outputs = plan.fgraph.inputs, plan.fgraph.outputs
    if plan.xp is np:
        plan.placed = stay(plan.nodes, outputs, implement)
    else:
        sides = {
            "inputs_on_host": plan.inputs_on_host,
            "outputs_on_host": plan.outputs_on_host,
            "outputs_anywhere": plan.outputs_anywhere,
        }
        plan.placed = place(plan.nodes, inputs, outputs, implement, **sides, updates=plan.updates)


def _narrow(plan: ProgramPlan) -> None:
    if (dtype := plan.dtype) is None:
        return

    def implement(node: Apply, run: Callable, reads: Sequence[bool], gives: Sequence[bool]) -> Callable:
        return array_rounded(node.op, node, run, reads, gives, xp=plan.xp, dtype=dtype)

    plan.placed, plan.stored = narrow(
        plan.placed, plan.fgraph.outputs, dtype, implement, at_once=bool(plan.guards)
    )


def _aliases(plan: ProgramPlan) -> None:
    plan.aliases = Aliases(plan.nodes)


def _destination(plan: ProgramPlan) -> None:
    plan.destinations = find_destinations(plan)


def _reuse(plan: ProgramPlan) -> None:
    plan.reuse = find_reuse(plan)


def _finish(plan: ProgramPlan) -> None:
    if plan.announced:
        plan.actions, joins = find_finished(plan)
        plan.destinations = plan.destinations._replace(joins=joins)


PASSES: dict[str, Callable[[ProgramPlan], None]] = {  # by the module that decides
    "lazy": _lazy,
    "host_or_device": _place,
    "narrow": _narrow,
    "aliases": _aliases,
    "destination": _destination,
    "reuse": _reuse,
    "finish": _finish,
}
