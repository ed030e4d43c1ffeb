"""The rewrite that makes regions: runs of nodes that have C texts become one node.

    nodes in order -> groups -> a Region for each

A node joins the open group unless there is a path from the group to the node through one without C text,
which must run in between. Nodes at the edges of a group that only move elements stay outside, where they are
views.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.traversal import applys_between
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import AllocEmpty, ExtractDiag, Join, Split
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor, Subtensor

from synk.compile.compat import AdvancedIncSubtensor1, IfElse, join_pieces, plain_graph
from synk.compile.programs.elementwise.chain_writer import NoTemplate
from synk.compile.programs.elementwise.fusion import TAG
from synk.compile.programs.graphs.substitute import substitute
from synk.compile.programs.passes.lazy import plan_lazy
from synk.compile.regions.c_texts import NoText
from synk.compile.regions.making import is_unread
from synk.compile.regions.region import Region
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import LARGEST
from synk.compile.rewriting.rewrites import NATIVE, step_rewriter

MOVING = (
    CheckAndRaise,
    DimShuffle,
    ExtractDiag,
    Reshape,
    JoinDims,
    SplitDims,
    SpecifyShape,
    Split,
    Subtensor,
)  # views of their first input
LONGEST = 400  # nodes of a region: compilers take longer for one function of many lines than for two
SMALL = 256  # elements: so many are copied in less time than making a view takes in Python
FEW = 4096  # elements: so many are filled in less time than a call from Python takes


def has_text(node: Apply) -> bool:
    """Tell whether a node can be written in C by itself."""
    return not reason_against(node)


def reason_against(node: Apply) -> str:
    """Return why a node cannot be written in C by itself; "" if it can.

    To find out, the node is written; the answer is kept in the node's tag. PyTensor copies tags with nodes:
    the answer holds for a copy whose inputs have the same types, and the same constants among them.
    """
    inputs = [(one.type, one if isinstance(one, Constant) else None) for one in node.inputs]
    decided = getattr(node.tag, "text_alone", None)
    if decided is None or decided[0] != inputs:
        decided = node.tag.text_alone = inputs, _reason_against(node)
    return decided[1]


def _reason_against(node: Apply) -> str:
    if node.op.destroy_map:
        return "works in place"
    inputs = [variable for variable in node.inputs if not is_written_out(variable)]
    try:
        RegionWriter([node], list(dict.fromkeys(inputs)), node.outputs).write()
    except (NoText, NoTemplate) as error:
        return str(error)
    return ""


def is_written_out(variable: Variable) -> bool:
    """Tell whether a variable is a constant that is small enough to stand in the C text."""
    return isinstance(variable, Constant) and getattr(variable.data, "size", 1) <= LARGEST


def groups(
    fgraph: FunctionGraph, nodes: Sequence[Apply], guards: dict[Apply, object]
) -> Iterator[list[Apply]]:
    """Yield groups of nodes that can run as one; nodes with different ``guards`` never share a group."""
    group: list[Apply] = []
    later: set[Variable] = set()  # variables of other nodes that depend on the group
    made: set[Variable] = set()
    kind: object = None
    for node in nodes:
        depends = any(variable in later for variable in node.inputs)
        alone = updates_large_variable(node, fgraph)
        if alone or stays_out(node, made, fgraph) or not has_text(node):
            if alone and has_text(node):
                yield [node]
            if depends or any(variable in made for variable in node.inputs):
                later.update(node.outputs)
            continue
        if group and (depends or guards.get(node) != kind or len(group) == LONGEST):
            yield group
            group, later, made = [], set(), set()
        kind = guards.get(node)
        group.append(node)
        made.update(node.outputs)
    if group:
        yield group


def is_of_one(node: Apply) -> bool:
    """Tell whether a softmax is over axes of length 1 alone."""
    broadcastable = node.inputs[0].type.broadcastable
    axes = range(len(broadcastable)) if node.op.axis is None else np.atleast_1d(node.op.axis)
    return all(broadcastable[axis] for axis in axes)


def expand(fgraph: FunctionGraph, node: Apply) -> None:
    """Replace a node with an inner graph by the nodes of that graph, if all of them have C texts."""
    if isinstance(node.op, Softmax | LogSoftmax) and is_of_one(node):
        return  # rewrites would simplify it to x - x and then 0, which is wrong where x is infinite
    graph = plain_graph(node.op)
    step_rewriter().rewrite(graph)
    inner = graph.toposort()
    if not inner or not all(has_text(one) for one in inner):
        return
    made = substitute(graph.outputs, dict(zip(graph.inputs, node.inputs, strict=True)))
    trace = getattr(node.outputs[0].tag, "trace", [])
    outside = {variable.owner for variable in node.inputs}  # PyTensor counts these as between
    for inside in set(applys_between(node.inputs, made)) - outside:
        inside.tag.inside_of = str(node)
        if isinstance(node.op, Softmax | LogSoftmax):
            inside.tag.of_nothing = True  # without elements there is no maximum, and none is read
        for variable in inside.outputs:
            if not getattr(variable.tag, "trace", None):
                variable.tag.trace = trace
    fgraph.replace_all(
        [
            (old, old.type.filter_variable(new, allow_convert=True))
            for old, new in zip(node.outputs, made, strict=True)
        ],
        reason="expanded",
        import_missing=True,
    )


def stays_out(node: Apply, made: Collection[Variable], fgraph: FunctionGraph) -> bool:
    """Tell whether a node runs better by itself than in a region, whose nodes have ``made`` some variables.

    A node that changes a part of a large array may do so in place, outside of a region. And the pieces of a
    join, if other nodes make them, can be written directly at their places in it.
    """
    if isinstance(node.op, IncSubtensor | AdvancedIncSubtensor | AdvancedIncSubtensor1):
        source = before_moving(node.inputs[0])
        return source not in made and not is_small(node.inputs[0])
    if isinstance(node.op, AllocEmpty):
        # In C it is filled if its elements are read, so that results repeat; of a large one that takes long.
        (empty,) = node.outputs
        return any(not is_unread(reader) for reader, _ in fgraph.clients[empty]) and not is_small(empty, FEW)
    if isinstance(node.op, Join):
        pieces = [before_moving(piece) for piece in join_pieces(node)[1]]
        return any(piece.owner is not None and piece not in made for piece in pieces) and not is_small(
            node.outputs[0]
        )
    return False


def updates_large_variable(node: Apply, fgraph: FunctionGraph) -> bool:
    """Tell whether a node computes a large shared variable's new value, and may overwrite the old one."""
    if not isinstance(node.op, Elemwise):
        return False
    new = [fgraph.outputs[k] for k in fgraph.update_mapping or ()]
    return any(variable in new and not is_small(variable) for variable in node.outputs)


def before_moving(variable: Variable) -> Variable:
    """Return the variable that this one is a view of, through any number of nodes that only move elements."""
    while variable.owner is not None and isinstance(variable.owner.op, MOVING):
        variable = variable.owner.inputs[0]
    return variable


class ExpandGraphs(GraphRewriter):
    """A rewrite that replaces nodes with inner graphs by the nodes of those graphs."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Expand all graphs that can be written in C."""
        for node in fgraph.toposort():
            if isinstance(node.op, OpFromGraph) and not node.op.destroy_map:
                expand(fgraph, node)


class MakeRegions(GraphRewriter):
    """A rewrite that puts a `Region` in the place of each group of nodes that have C texts."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Group all nodes of the graph and make the regions."""
        order = fgraph.toposort()
        lazy = any(isinstance(node.op, IfElse) for node in order)
        guards = dict(plan_lazy(fgraph, order)[1]) if lazy else {}
        for group in list(groups(fgraph, order, guards)):
            replace(fgraph, group)


def replace(fgraph: FunctionGraph, group: Sequence[Apply]) -> None:
    """Put a region in the place of a group, unless all that it does is to make views."""
    inside = set(group)
    outputs = results(fgraph, inside, group)
    needed = needed_for(outputs, inside)
    nodes = [node for node in group if node in needed]
    if all(isinstance(node.op, MOVING) for node in nodes):
        return
    inputs = list(
        dict.fromkeys(
            variable
            for node in nodes
            for variable in node.inputs
            if variable.owner not in needed and not is_written_out(variable)
        )
    )
    try:
        region = Region(inner_graph(nodes, inputs, outputs))
    except NoText:
        return  # each node has a C text by itself, but not all of them together
    made = region(*inputs, return_list=True)
    for old, new in zip(outputs, made, strict=True):
        new.tag.trace = getattr(old.tag, "trace", [])
    fgraph.replace_all(list(zip(outputs, made, strict=True)), reason="regions", import_missing=False)


def results(fgraph: FunctionGraph, inside: set[Apply], group: Sequence[Apply]) -> list[Variable]:
    """Return the variables that a region must return for nodes outside; instead of a view, its source."""
    found: dict[Variable, None] = {}

    def need(variable: Variable) -> None:
        node = variable.owner
        if node not in inside:
            return
        source = before_moving(variable)
        if isinstance(node.op, MOVING) and not (source.owner in inside and is_small(source)):
            for source in node.inputs:
                need(source)
        else:
            found[variable] = None

    for node in group:
        for variable in node.outputs:
            if any(reader == "output" or reader not in inside for reader, _ in fgraph.clients[variable]):
                need(variable)
    return list(found)


def is_small(variable: Variable, most: int = SMALL) -> bool:
    """Tell whether a variable is known to have few elements."""
    shape = getattr(variable.type, "shape", ())
    return None not in shape and prod(shape) <= most


def needed_for(outputs: Sequence[Variable], inside: set[Apply]) -> set[Apply]:
    """Return the nodes of a group from which its results are computed."""
    needed: set[Apply] = set()
    waiting = [variable.owner for variable in outputs]
    while waiting:
        node = waiting.pop()
        if node in inside and node not in needed:
            needed.add(node)
            waiting += [variable.owner for variable in node.inputs if variable.owner is not None]
    return needed


def inner_graph(
    nodes: Sequence[Apply], inputs: Sequence[Variable], outputs: Sequence[Variable]
) -> FunctionGraph:
    """Return a graph of copies of the nodes, for a region."""
    copies: dict[Variable, Variable] = {}
    for variable in inputs:
        copies[variable] = variable.type()
        copies[variable].name = variable.name
    for node in nodes:
        copy = node.clone_with_new_inputs([copies.get(variable, variable) for variable in node.inputs])
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.tag.trace = getattr(old.tag, "trace", [])
            copies[old] = new
    return FunctionGraph([copies[v] for v in inputs], [copies[v] for v in outputs], clone=False)


optdb.register("expand_graphs", ExpandGraphs(), TAG, position=49.1)
optdb.register("make_native_regions", MakeRegions(), NATIVE, position=49.2)  # before Ops work in place
