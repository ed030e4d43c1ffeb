"""Make the plan of a program: each pass decides one thing, with what those before it have decided.

    graph, what is asked for -> ProgramPlan.make: PASSES in turn -> ProgramPlan -> ProgramWriter

`PASSES` is the list of them; ``docs/linker.rst`` has it too, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph

from synk.compile.host_call import HostCall
from synk.compile.programs.passes.aliases import Aliases
from synk.compile.programs.passes.destination import Destinations, find_destinations
from synk.compile.programs.passes.finish import Actions, find_finished
from synk.compile.programs.passes.host_or_device import Placement, place, stay
from synk.compile.programs.passes.lazy import Guard, plan_lazy
from synk.compile.programs.passes.reuse import Reuse, find_reuse
from synk.compile.tables import HOST, accepts_out, array_funcify, array_rounded
from synk.gpu.passes.narrow import narrow


@dataclass
class ProgramPlan:
    """The request for a program, and the decisions of the passes about it; `make` asks them.

    The parameters are those of `synk.compile.programs.emit.emit`; ``dtype`` is its ``narrow``.
    """

    fgraph: FunctionGraph
    xp: ModuleType
    order: Sequence[Apply]
    updates: Mapping[int, int]
    given: Collection[int] = ()
    fetched: Collection[int] = ()
    left: Collection[int] = ()
    dtype: str | None = None
    announced: bool = False

    nodes: list[Apply] = field(init=False)  # in the order they run
    guards: Mapping[Apply, Guard] = field(init=False)  # of the nodes that do not always run
    placed: Placement = field(init=False)  # casts included
    stored: Collection[Variable] = field(init=False, default=())  # values that are kept in 16 bits
    aliases: Aliases = field(init=False)
    found: Destinations = field(init=False)
    reuse: Reuse = field(init=False)
    actions: Actions = field(init=False, default_factory=dict)  # what is done after which node

    def make(self) -> ProgramPlan:
        """Ask the passes."""
        for decide in PASSES.values():
            decide(self)
        return self

    def target(self, variable: Variable) -> Variable:
        """Return the copy of an input in whose array its new value belongs."""
        return self.placed.targets.get(variable, variable)

    def accepts(self, node: Apply) -> bool:
        """Tell whether a node may be told where to write its results."""
        on_host = node.outputs[0] in self.placed.on_host
        return not on_host and accepts_out(self.placed.implementations[node], self.xp)

    def owns(self, value: Variable) -> bool:
        """Tell whether a computed value is an array of the program's own, which it may write over."""
        on_host = value in self.placed.on_host
        return not on_host and not isinstance(self.placed.implementations[value.owner], HostCall)


def _lazy(plan: ProgramPlan) -> None:
    plan.nodes, plan.guards = plan_lazy(plan.fgraph, plan.order)


def _place(plan: ProgramPlan) -> None:
    def implement(node: Apply, side: str) -> Callable:
        return array_funcify(node.op, node, np if side == HOST else plan.xp)

    inputs, outputs = plan.fgraph.inputs, plan.fgraph.outputs
    if plan.xp is np:
        plan.placed = stay(plan.nodes, outputs, implement)
    else:
        wanted = {"given": plan.given, "fetched": plan.fetched, "left": plan.left}
        plan.placed = place(plan.nodes, inputs, outputs, implement, **wanted, updates=plan.updates)


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
    plan.found = find_destinations(plan)


def _reuse(plan: ProgramPlan) -> None:
    plan.reuse = find_reuse(plan)


def _finish(plan: ProgramPlan) -> None:
    if plan.announced:
        plan.actions, joins = find_finished(plan)
        plan.found = plan.found._replace(joins=joins)


PASSES: dict[str, Callable[[ProgramPlan], None]] = {  # by the module that decides
    "lazy": _lazy,
    "host_or_device": _place,
    "narrow": _narrow,
    "aliases": _aliases,
    "destination": _destination,
    "reuse": _reuse,
    "finish": _finish,
}
