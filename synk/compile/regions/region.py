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

from synk.compile.compat import rewriting_inner_graphs
from synk.compile.programs.emit import emit
from synk.compile.programs.text.program import OfNodes, Program
from synk.compile.regions.functions import RegionFunction
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.tables import array_funcify, takes_out


class Region(OfNodes, Op):
    """An Op that stands for several nodes, which run as one C function.

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
        """Tell whether results are computed element by element, so that they may be written over inputs."""
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
    """Return the nodes that a region stands for, in order; an empty list for any other node."""
    return node.op.fgraph.toposort() if isinstance(node.op, Region) else []


@array_funcify.register(Region)
def region(op, node, xp):
    """Return the implementation of a region, which takes ``out=`` unless the C function may give up late."""
    run = RegionFunction(op.fgraph, op.text, partial(in_python, op.fgraph))
    return run if op.text.fails_late else takes_out(run)


def in_python(fgraph: FunctionGraph) -> Program:
    """Compile the nodes of a region to a Python program."""
    # Nodes that rewrites make here get the traces of those that they replace, not that of this call.
    limit = pytensor.config.traceback__compile_limit
    with rewriting_inner_graphs(), pytensor.config.change_flags(traceback__limit=limit):
        return emit(fgraph, np)
