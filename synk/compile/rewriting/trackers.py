"""Let rewriters forget the Ops of a graph that has been rewritten.

    query -> rewriters, `ForgetOps` as the last of them -> rewritten graph, of which no rewriter keeps an Op

A rewriter notes for each Op which of its rules apply, and keeps the Op for that. Many Ops are equal to
others that came before, but not those that hold a graph or constants: regions, loops, fused scalars.
Rewriters that PyTensor's database holds, and those that we keep, live as long as the process.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter, OpToRewriterTracker
from pytensor.graph.rewriting.db import RewriteDatabase

# Attributes of rewriters and databases in which there are others.
PARTS = (
    "data",
    "rewrites",
    "node_rewriter",
    "global_rewriters",
    "final_rewriters",
    "cleanup_rewriters",
    "db",
)


class ForgetOps(GraphRewriter):
    """A rewriter that only clears what other rewriters have noted about Ops; place it last.

    Parameters
    ----------
    kept : GraphRewriter
        A rewriter whose notes are cleared, beside those of PyTensor's database.
    """

    def __init__(self, kept: GraphRewriter):
        super().__init__()
        self._own = tuple(trackers(kept, set()))

    def apply(self, fgraph):
        """Clear the notes of all these rewriters."""
        for tracker in (*lasting_trackers(), *self._own):
            tracker.get_trackers.cache_clear()


def forgetful(sequence: Any) -> GraphRewriter:
    """Let a sequence of rewriters, which lives on, forget the Ops of each graph at its end; return it."""
    sequence.append(ForgetOps(sequence))
    return sequence


@cache
def lasting_trackers() -> tuple[OpToRewriterTracker, ...]:
    """Return the trackers that live as long as the process: there are ten, and finding them takes 10 ms."""
    return tuple(trackers(optdb, set()))


def trackers(part: Any, seen: set[int]) -> Iterator[OpToRewriterTracker]:
    """Yield the trackers of a rewriter or a database, and of its parts that are not among the ids ``seen``.

    A tracker notes for each Op the rules that apply to it.
    """
    for one in all_parts(part, seen):
        for value in vars(one).values() if hasattr(one, "__dict__") else ():
            if isinstance(value, OpToRewriterTracker):
                yield value


def all_parts(whole: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a rewriter or a database, and all in it, but for those whose ids are ``seen``."""
    if whole is None or id(whole) in seen:
        return
    seen.add(id(whole))
    yield whole
    for part in parts(whole):
        yield from all_parts(part, seen)


def parts(whole: Any) -> Iterator[Any]:
    """Yield the rewriters and databases that a rewriter or a database consists of."""
    if isinstance(whole, RewriteDatabase):
        for named in whole.__db__.values():
            yield from named
    for name in PARTS:
        part = getattr(whole, name, None)
        yield from part if isinstance(part, list | tuple) else (part,)
