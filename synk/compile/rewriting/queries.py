"""Query PyTensor's database of rewrites once, and rewrite many graphs by what it gave.

    query -> kept_rewriter -> GraphRewriter, the same for the next graph, until the database changes

A query goes through some hundred rewrites, and what it makes sorts them by the Ops that each is for. That
takes a sixth of the time in which a small function is made, and nothing in it depends on the graph.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pytensor import config
from pytensor.compile.mode import Mode, optdb
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery

from synk.compile.rewriting.trackers import forgetful, parts

KEPT = 16  # rewriters


class KeepingMode(Mode):
    """A mode of PyTensor's whose rewriter is kept from function to function."""

    @property
    def optimizer(self) -> GraphRewriter:
        """Return the rewriter; PyTensor's own property makes one for each function."""
        if isinstance(self._optimizer, RewriteDatabaseQuery) and self.optdb is optdb:
            return kept_rewriter(self._optimizer)
        return super().optimizer


def kept_rewriter(query: RewriteDatabaseQuery) -> GraphRewriter:
    """Return the rewriter that a query gives: the same as before, if no rewrite was registered since."""
    if query.subquery:
        return forgetful(optdb.query(query))
    selected = (query.include, query.require, query.exclude, query.extra_rewrites)
    numbers = (query.position_cutoff, config.optdb__max_use_ratio, _registered.sizes())
    return _queried(_Question((*map(tuple, selected), *numbers), query))


@dataclass(frozen=True)
class _Question:
    """A query, equal to others for which the database has the same answer."""

    content: tuple[Any, ...]
    query: RewriteDatabaseQuery = field(compare=False)


@lru_cache(KEPT)
def _queried(question: _Question) -> GraphRewriter:
    return forgetful(optdb.query(question.query))


class _Registered:
    """The rewrites in PyTensor's databases, counted, which tells whether there are others than before."""

    def __init__(self) -> None:
        self._databases: tuple[RewriteDatabase, ...] = ()
        self._sizes: tuple[int, ...] = ()

    def sizes(self) -> tuple[int, ...]:
        """Return how many rewrites have each database's names and tags, one number a database."""
        if self._count() != self._sizes or not self._databases:
            self._databases = tuple(_databases(optdb, set()))  # a new one may be among them
            self._sizes = self._count()
        return self._sizes

    def _count(self) -> tuple[int, ...]:
        return tuple(sum(map(len, database.__db__.values())) for database in self._databases)


_registered = _Registered()


def _databases(part: Any, seen: set[int]) -> Iterator[RewriteDatabase]:
    """Yield a database, and those in it."""
    if part is None or id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, RewriteDatabase):
        yield part
    for inner in parts(part):
        yield from _databases(inner, seen)
