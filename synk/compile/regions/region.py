"""Regions: nodes that run as one C function, which stands in the graph as one node.

Region(graph of nodes) -> array entry -> RegionFunction
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytensor
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import Elemwise

from synk.compile.compat import as_written
from synk.compile.programs.emit import emit
from synk.compile.programs.text.program import OfNodes, Program
from synk.compile.regions.functions import RegionFunction
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.tables import array_funcify, takes_out


class Region(OfNodes, Op):
    """Nodes that run as one.

    Parameters
    ----------
    fgraph : FunctionGraph
        The nodes, none of which works in place. NoText if they cannot be written together.
    """

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph
        self.text = RegionWriter(fgraph.toposort(), fgraph.inputs, fgraph.outputs).write()

    @property
    def elementwise(self) -> bool:
        """Tell whether results are made element by element, so that they may take the inputs' memory."""
        nodes = self.fgraph.apply_nodes
        return len(nodes) == 1 and all(isinstance(node.op, Elemwise) for node in nodes)

    def make_node(self, *inputs):
        return Apply(self, list(inputs), [variable.type() for variable in self.fgraph.outputs])

    def perform(self, node, inputs, output_storage):
        """Run the nodes in Python."""
        for cell, value in zip(output_storage, in_python(self.fgraph)(*inputs), strict=True):
            cell[0] = value

    def __str__(self) -> str:
        ops = [str(node.op) for node in self.fgraph.toposort()]
        if len(ops) == 1:
            return ops[0]
        return f"Region{{{len(ops)} nodes: {', '.join(ops[:3])}{', ...' if len(ops) > 3 else ''}}}"


def nodes_of(node: Apply) -> list[Apply]:
    """Return the nodes that a region stands for, in order; none of another node."""
    return node.op.fgraph.toposort() if isinstance(node.op, Region) else []


@array_funcify.register(Region)
def region(op, node, xp):
    """Return the C function, which takes arrays for its results too, unless it may give up late."""
    run = RegionFunction(op.fgraph, op.text, partial(in_python, op.fgraph))
    return run if op.text.fails_late else takes_out(run)


def in_python(fgraph: FunctionGraph) -> Program:
    """Return the nodes of a region as a Python program."""
    # What is made in a call keeps the lines of what it is made of, not the call's.
    limit = pytensor.config.traceback__compile_limit
    with as_written(), pytensor.config.change_flags(traceback__limit=limit):
        return emit(fgraph, np)
