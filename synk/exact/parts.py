"""Find where a graph in which ranks meet can be cut, so that ranks compute slices and meet once a call.

    rows of a slice -> parts -> accumulated over slices | after the last one: parts -> all-reduces -> results

Parts are what a rank gives to all-reduces. The cut is at those if nothing behind them needs rows again, or
ranks to meet again.
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
    """Parts, each with the operation by which it accumulates; or why there are none, for the user.

    ``completed`` are the numbers of the results that are made of parts.
    """

    parts: tuple[tuple[Variable, str], ...] = ()
    completed: tuple[int, ...] = ()
    refused: str = ""


def ranks_meet(results: Iterable[Variable]) -> bool:
    """Tell whether ranks meet on the way to some of the results, in loops or outside of them."""
    return any(has_collectives(node.op) for node in topological(results))


def first_meeting(results: Iterable[Variable]) -> str:
    """Return the line of the script for which ranks meet first on the way to results, in parentheses."""
    nodes = topological(results)
    return _line_of(next(node for node in nodes if has_collectives(node.op)), nodes)


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
    """Return why ranks cannot meet by a node after all slices."""
    if isinstance(node.op, BroadcastOp):
        return "each slice would repeat what is drawn once for all rows"
    if isinstance(node.op, AllGatherOp):
        return "all rows are gathered"
    return f"the ranks meet {'a second time' if isinstance(node.op, AllReduceOp) else 'in a loop or branch'}"


def _line_of(node: Apply, nodes: Sequence[Apply]) -> str:
    """Return in parentheses the script's line that reads what ranks meet for, or that built another node."""
    readers = (one for one in nodes if not set(node.outputs).isdisjoint(one.inputs))
    place = place_of(next(readers, node) if isinstance(node.op, CollectiveOp) else node)
    return f" ({place})" if place else ""
