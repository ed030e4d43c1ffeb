"""Let a mode that the script chose compile the graphs inside of Ops as well.

PyTensor compiles these when they first run: in the mode of its configuration or in a mode of Scan's own, with
rewrites that the chosen mode leaves out because they are wrong.

    results -> for_mode -> results in which nodes of OpFromGraph are written out, and loops have the mode
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.scan.op import Scan

from synk.compile.compat import plain_graph
from synk.compile.programs.graphs.origin import keep_origin, remade
from synk.compile.programs.graphs.serialize import topological
from synk.compile.programs.graphs.substitute import substitute


def for_mode(results: Sequence[Variable], mode: Any) -> list[Variable]:
    """Return copies of ``results`` in which the inner graphs, at any depth, are compiled in ``mode``.

    Loops to which the script gave a mode keep it.
    """
    new: dict[Variable, Variable] = {}
    for node in topological(results):
        op, inputs = node.op, [new.get(variable, variable) for variable in node.inputs]
        if isinstance(op, OpFromGraph) and type(op).perform is OpFromGraph.perform:
            graph = plain_graph(op)
            inside = for_mode(graph.outputs, mode)
            outputs = substitute(inside, dict(zip(graph.inputs, inputs, strict=True)))
        elif isinstance(op, Scan) and op.mode is None:
            outputs = _with_mode(op, mode).make_node(*inputs).outputs
            keep_origin(node.outputs, outputs)
        else:
            outputs = remade(node, inputs).outputs
        new.update(zip(node.outputs, outputs, strict=True))
    return [new.get(variable, variable) for variable in results]


def _with_mode(op: Scan, mode: Any) -> Scan:
    graph = plain_graph(op)
    kept = {
        name: getattr(op, name) for name in ("truncate_gradient", "name", "profile", "allow_gc", "strict")
    }
    return Scan(list(graph.inputs), for_mode(graph.outputs, mode), op.info, mode=mode, **kept)
