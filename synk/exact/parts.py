"""Cut a graph at its all-reduces, so that a call with several slices needs one all-reduce, not one per slice.

    rows of a slice -> parts -> accumulated over slices | after the last one: parts -> all-reduces -> results

Parts are the inputs of all-reduces. A graph can be cut if nothing that depends on an all-reduce needs rows or
another collective.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable

from synk.compile.programs.graphs.origin import place_of
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collective_op import CollectiveOp, has_collectives
from synk.exact.collectives.collectives import AllGatherOp, AllReduceOp
from synk.exact.collectives.sharing import BroadcastOp


class Cut(NamedTuple):
    """The parts at which a graph is cut, each with the operation by which it accumulates over slices.

    ``completed`` are the positions of the results that depend on parts. If the graph cannot be cut,
    ``refused`` tells the user why, and there are no parts.
    """

    parts: tuple[tuple[Variable, str], ...] = ()
    completed: tuple[int, ...] = ()
    refused: str = ""


def ranks_meet(results: Iterable[Variable]) -> bool:
    """Tell whether there is a collective in the graph of ``results``, also inside of loops."""
    return any(has_collectives(node.op) for node in topological(results))


def first_meeting(results: Iterable[Variable]) -> str:
    """Return, in parentheses, the script's line that needs the first collective on the way to ``results``."""
    nodes = topological(results)
    return _line_of(next(node for node in nodes if has_collectives(node.op)), nodes)


def cut(results: Sequence[Variable], of_slice: Collection[Variable]) -> Cut:
    """Cut the graph of results at its all-reduces.

    Parameters
    ----------
    results : sequence of Variable
        Results whose collectives were all inserted by synk, none written by the user.
    of_slice : collection of Variable
        The inputs of the graph that differ from slice to slice.
    """
    early, late = set(of_slice), set[Variable]()  # variables that depend on the slice, and on a collective
    parts: dict[Variable, str] = {}
    nodes = topological(results)
    for node in nodes:
        is_early, is_late = (not known.isdisjoint(node.inputs) for known in (early, late))
        if has_collectives(node.op):
            if is_late or not isinstance(node.op, AllReduceOp):
                return Cut(refused=_why(node) + _line_of(node, nodes))
            parts.update(dict.fromkeys(node.inputs[:-1], node.op.op))
            late.update(node.outputs)
        elif is_early and is_late:
            again = "rows, or draws, are needed again after the ranks have met for a value of all rows"
            return Cut(refused=again + _line_of(node, nodes))
        else:
            early.update(node.outputs if is_early else ())
            late.update(node.outputs if is_late else ())
    return Cut(tuple(parts.items()), tuple(k for k, result in enumerate(results) if result in late))


def _why(node: Apply) -> str:
    """Return the reason, for the user, why a collective node cannot wait until all slices are computed."""
    if isinstance(node.op, BroadcastOp):
        return "each slice would repeat what is drawn once for all rows"
    if isinstance(node.op, AllGatherOp):
        return "all rows are gathered"
    return f"the ranks meet {'a second time' if isinstance(node.op, AllReduceOp) else 'in a loop or branch'}"


def _line_of(node: Apply, nodes: Sequence[Apply]) -> str:
    """Return, in parentheses, the script's line that reads the result of a collective node.

    For a node of another Op, such as a loop with collectives inside, it is the line that built the node.
    """
    readers = (one for one in nodes if not set(node.outputs).isdisjoint(one.inputs))
    place = place_of(next(readers, node) if isinstance(node.op, CollectiveOp) else node)
    return f" ({place})" if place else ""
