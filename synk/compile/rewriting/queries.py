"""Query PyTensor's database of rewrites once, and rewrite many graphs by what it gave.

    query -> kept_rewriter -> GraphRewriter, the same for the next graph, until the database changes

A query goes through some hundred rewrites, and what it makes sorts them by the Ops that each is for. That
is more than a quarter of the Python calls that make a small function, and does not depend on the graph.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pytensor import config
from pytensor.compile.mode import Mode, optdb
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery

from synk.compile.rewriting.trackers import all_parts, forgetful

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
    numbers = (query.position_cutoff, config.optdb__max_use_ratio, _registered.contents())
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
    """The rewrites in PyTensor's databases, which tell whether there are others than before."""

    def __init__(self) -> None:
        self._databases: tuple[RewriteDatabase, ...] = (optdb,)
        self._contents: tuple[int, ...] = ()

    def contents(self) -> tuple[int, ...]:
        """Return a number for each database, another one if a rewrite, a tag or a position has changed."""
        if self._read() != self._contents:
            found = all_parts(optdb, set())  # a new one may be among them
            self._databases = tuple(one for one in found if isinstance(one, RewriteDatabase))
            self._contents = self._read()
        return self._contents

    def _read(self) -> tuple[int, ...]:
        return tuple(map(_content, self._databases))


_registered = _Registered()


def _content(database: RewriteDatabase) -> int:
    """Return a number for what stands in a database.

    Rewrites count by their address. What a kept query gave holds its rewrites, so that no other can come to
    the address of one that was taken out. Names without a rewrite, which queries add, are left out.
    """
    # `values` is what PyTensor's set keeps its members in, read without a call for each.
    named = [(name, *one.values) for name, one in list(database.__db__.items()) if one.values]
    positions = getattr(database, "__position__", {})
    return hash((*named, *positions.items()))
