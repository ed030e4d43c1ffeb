"""Write a graph as straight-line Python, one line per node.

Each value is deleted on the line after its last use, so a program holds no more memory than the
graph needs:

    def program(v0, v1):
        v2 = Dot22_0(v0, v1)
        del v0, v1
        v3 = Sum_1(v2)
        del v2
        return (asarray_2(v3), )

Nodes that only one branch of an ``IfElse`` needs stand in an ``if`` block.

    graph -> ProgramPlan, by the passes -> last_uses -> ProgramWriter -> Program
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph

from synk.compile.programs.passes.decisions import ProgramPlan
from synk.compile.programs.passes.finish import Announcer
from synk.compile.programs.passes.host_or_device import PlacedStep, Placement
from synk.compile.programs.passes.plan import decide_all
from synk.compile.programs.text.buffers import assemble
from synk.compile.programs.text.program import Program
from synk.compile.programs.text.program_writer import ProgramWriter
from synk.compile.tables import HOST

Observer = Callable[[Apply, Callable], Callable]  # node, implementation -> what runs in its place


def emit(
    fgraph: FunctionGraph,
    xp: ModuleType,
    order: Sequence[Apply] | None = None,
    unpack: bool = False,
    observe: Observer | None = None,
    updates: Mapping[int, int] | None = None,
    inputs_on_host: Collection[int] = (),
    outputs_on_host: Collection[int] = (),
    outputs_anywhere: Collection[int] = (),
    announcer: Announcer | None = None,
    narrow: str | None = None,
) -> Program:
    """Compile a graph to a `Program`.

    Parameters
    ----------
    fgraph : FunctionGraph
        Rewritten and ready to run.
    xp : module
        Array module handed to the entries.
    order : sequence of Apply, optional
        Nodes in the order to run them; default ``fgraph.toposort()``, which puts the readers of an
        array before the node that destroys it.
    unpack : bool
        Let a graph with one output return it bare, as the entry of a node with one output does.
    observe : callable, optional
        ``observe(node, implementation)`` returns what runs in place of each implementation: the same
        values from the same arguments, with something measured or checked on the way.
    updates : mapping of int to int, optional
        Which output is the new value of which input: it is returned in the array of that input.
    inputs_on_host, outputs_on_host, outputs_anywhere : collection of int
        Inputs that come from the host, outputs that go there, and outputs that stay where they are computed;
        see `synk.compile.programs.passes.host_or_device.place`. With NumPy they make no difference.
    announcer : Announcer, optional
        Told which parts of a join that updates a shared variable are final, while the rest is computed.
    narrow : {"float16", "bfloat16"}, optional
        What to keep some float32 arrays in; see `synk.compile.programs.passes.narrow`. Inner graphs stay
        float32.
    """
    order = fgraph.toposort() if order is None else order
    announced = announcer is not None
    plan = decide_all(
        ProgramPlan(
            fgraph,
            xp,
            order,
            updates or {},
            inputs_on_host,
            outputs_on_host,
            outputs_anywhere,
            narrow,
            announced,
        )
    )
    steps, n_fetches = fetches_last(plan.placed.steps)
    writer = ProgramWriter(fgraph.inputs, xp, plan, announcer)
    for k, (step, dead) in enumerate(zip(steps, last_uses(steps, outlasting(plan)), strict=True)):
        if step.node is None:
            writer.crossing(step, always=k >= len(steps) - n_fetches)
        else:
            run = implementation(step.node, plan)
            writer.node(step, run if observe is None else observe(step.node, run))
        writer.delete(dead)
    return writer.program(unpack, tuple(host_nodes(plan.placed)))


def implementation(node: Apply, plan: ProgramPlan) -> Callable:
    """Return the implementation of a node.

    Of a join some of whose pieces nodes write in place, it is one that copies only the other pieces.
    """
    join = plan.destinations.joins.get(node)
    return plan.placed.implementations[node] if join is None else assemble(join.pieces)


def host_nodes(placed: Placement) -> Iterator[Apply]:
    """Yield the nodes that run their Op's own Python implementation, nodes of inner graphs included."""
    for node in [step.node for step in placed.steps if step.node is not None]:
        moved = (node,) if node in placed.moved else ()
        yield from getattr(placed.implementations[node], "host_nodes", moved)


def fetches_last(steps: Sequence[PlacedStep]) -> tuple[list[PlacedStep], int]:
    """Move the steps that copy results to the host behind all others; return all steps, and how many moved.

    Each of these steps waits for the device. In the middle, no more kernels would be launched meanwhile, and
    the device would run out of work.
    """
    read = {variable for step in steps for variable in step.inputs}
    made = {variable for step in steps for variable in step.outputs}

    def fetches(step: PlacedStep) -> bool:
        # An input may be written over, by its own new value, before the end.
        return (
            step.node is None and step.to == HOST and step.inputs[0] in made and step.outputs[0] not in read
        )

    last = [step for step in steps if fetches(step)]
    return [*(step for step in steps if not fetches(step)), *last], len(last)


def outlasting(plan: ProgramPlan) -> list[Variable]:
    """Return the variables whose values are still read after the last node, or in the next call."""
    constants = [variable for step in plan.placed.constants for variable in step.outputs]
    return [*plan.placed.results, *map(plan.target, plan.destinations.update_targets.values()), *constants]


def last_uses(steps: Sequence[Apply | PlacedStep], kept: Sequence[Variable]) -> list[list[Variable]]:
    """Return for each step the variables that no later step reads: inputs used last, outputs never used."""
    seen = set(kept)
    dead: list[list[Variable]] = []
    for step in reversed(steps):
        fresh = [
            v
            for v in dict.fromkeys([*step.inputs, *step.outputs])
            if v not in seen and not isinstance(v, Constant)
        ]
        seen.update(fresh)
        dead.append(fresh)
    return dead[::-1]
