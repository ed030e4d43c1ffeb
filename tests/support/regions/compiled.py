"""Functions whose nodes run as regions."""

import pytensor

from synk.compile import ArrayLinker, array_mode
from synk.compile.regions.region import Region


def compiled(inputs, outputs, **keywords):
    return pytensor.function(inputs, outputs, mode=array_mode(ArrayLinker(native=True)), **keywords)


def regions_of(function):
    return [node for node in function.maker.fgraph.toposort() if isinstance(node.op, Region)]
