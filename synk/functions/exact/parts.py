"""Find where a graph in which ranks meet can be cut, so that ranks compute slices and meet once a call.

    rows of a slice -> parts -> accumulated over slices | after the last one: parts -> all-reduces -> results

Parts are what a rank gives to all-reduces. The cut is at those if nothing behind them needs rows again, or
ranks to meet again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from pytensor.graph.basic import Variable

from synk.compile.graphs.origin import describe_node
from synk.compile.graphs.serialize import topological
from synk.ops.collective_op import has_collectives
from synk.ops.collectives import AllReduce
from synk.ops.sharing import Broadcast


class Cut(NamedTuple):
    """Parts, each with the operation by which it accumulates; or why there are none.

    ``completed`` are the numbers of the results that are made of parts.
    """

    parts: tuple[tuple[Variable, str], ...] = ()
    completed: tuple[int, ...] = ()
    refused: str = ""


def ranks_meet(results: Iterable[Variable]) -> bool:
    """Tell whether ranks meet on the way to some of the results, in loops or outside of them."""
    return any(has_collectives(node.op) for node in topological(results))


def cut(results: Sequence[Variable], of_slice: Collection[Variable]) -> Cut:
    """Cut the graph of results at its all-reduces.

    Parameters
    ----------
    results : sequence of Variable
        In which ranks meet for no other reason than that each has a part of one process's value.
    of_slice : collection of Variable
        What the graph begins with that differs from slice to slice.
    """
    early, late = set(of_slice), set[Variable]()  # what depends on slices, and on a collective
    parts: dict[Variable, str] = {}
    for node in topological(results):
        is_early, is_late = (not known.isdisjoint(node.inputs) for known in (early, late))
        if isinstance(node.op, Broadcast):
            return Cut(refused="ranks meet inside its graph for a draw that each slice would repeat")
        if has_collectives(node.op):
            if is_late or not isinstance(node.op, AllReduce):
                return Cut(refused=f"ranks meet inside its graph by {describe_node(node)}")
            parts.update(dict.fromkeys(node.inputs[:-1], node.op.op))
            late.update(node.outputs)
        elif is_early and is_late:
            again = f"after that rows, or draws, are needed by {describe_node(node)}"
            return Cut(refused=f"ranks meet inside its graph, and {again}")
        else:
            early.update(node.outputs if is_early else ())
            late.update(node.outputs if is_late else ())
    return Cut(tuple(parts.items()), tuple(k for k, result in enumerate(results) if result in late))
