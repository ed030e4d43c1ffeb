"""Compile a single node as a region."""

import numpy as np
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise

from synk.compile import array_funcify
from synk.compile.regions.region import Region


def region_of(node):
    """Return the C function of an Elemwise node; what it writes over in place, it is told by ``out=``."""
    inputs = [variable.type() for variable in node.inputs]
    outputs = Elemwise(node.op.scalar_op)(*inputs, return_list=True)
    region = Region(FunctionGraph(inputs, outputs, clone=False))
    return array_funcify(region, region.make_node(*inputs), np)
