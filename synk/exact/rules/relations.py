"""Say how a rank's value of a variable relates to the value that one process would compute.

    x, scattered             Rows(0)          the ranks' values, joined along axis 0, are that value
    x.sum(axis=0)            Partial("sum")   the ranks' values, added up, are that value
    x.shape[0]               Count()          the same; an array of this length has each rank's own rows
    w, x.shape[1]            SAME             each rank has that value

A rule (`synk.exact.rules.table`) says which relations of an Op's inputs give which of its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Relation:
    """The base class of relations, which are the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Same(Relation):
    """Every rank has the value that one process has."""


SAME = Same()
EACH, SCALED = "each", "scaled"


@dataclass(frozen=True, slots=True)
class Rows(Relation):
    """Every rank has some rows of one process's value along ``axis``; in rank order they are all of it.

    ``length`` tells their number: ``EACH`` is the number of the rank's rows, ``SCALED`` that number times a
    factor that is the same on all ranks. Any other ``length`` stands for a selection of rows, whose number is
    not known beforehand; selections with equal ``length`` have equally many rows.
    """

    axis: int
    length: Any = EACH


@dataclass(frozen=True, slots=True)
class SomeRows(Relation):
    """As `Rows`, but a rank without rows has one row that does not change ``op``, "min" or "max"."""

    axis: int
    op: str


@dataclass(frozen=True, slots=True)
class Partial(Relation):
    """The values of the ranks, combined elementwise by ``op``, are one process's value.

    ``op`` is "sum", "prod", "min" or "max". A value is ``picked`` if one rank has all of it, as of a single
    row, and the others have 0, which would become NaN if it were divided by 0 or multiplied by infinity.
    """

    op: str
    picked: bool = field(default=False, compare=False)


SUM = Partial("sum")


def keeps_parts(part: Partial, before: str, after: str) -> bool:
    """Tell whether parts of a value are parts of the cast value if each is cast from ``before`` to ``after``.

    Integers that are too large wrap around, differently in two dtypes; int64 is large enough for sums.
    """
    if before == after:
        return True
    if part.op in ("min", "max"):
        return before != "bool" and (after.startswith("float") or np.can_cast(before, after))
    exact = ("float", "complex", "int64") if part == SUM else ("float", "complex")
    return before.startswith(exact) and after.startswith(("float", "complex"))


@dataclass(frozen=True, slots=True)
class Count(Relation):
    """The value is this rank's number of rows, ``length`` as in `Rows`; one process has the sum over ranks.

    In an array that is made with this length, every rank has its own rows.
    """

    length: Any = EACH


@dataclass(frozen=True, slots=True)
class Counts(Relation):
    """The value is a vector of lengths, such as a shape.

    ``lengths`` has the ``length`` of each that is a `Count`, and None for those that are the same on all
    ranks.
    """

    lengths: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowNumbers(Relation):
    """The value holds numbers of this rank's rows, counted from 0 on each rank; one process counts through.

    ``length``, as in `Rows`, tells how many numbers there are.
    """

    length: Any = EACH


@dataclass(frozen=True, slots=True)
class Own(Relation):
    """Each rank has its own value, such as statistics of its part of a batch; ``why`` says for what reason.

    Where one value is needed, it is the mean of the ranks' values, weighted by rows.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Stream(Relation):
    """The value is the state of random draws: every rank has its own."""


STREAM = Stream()


@dataclass(frozen=True, slots=True)
class Drawn(Relation):
    """Every rank has drawn a value, where one process draws one for all rows: that of rank 0 counts."""


DRAWN = Drawn()


def counted(relation: Relation) -> bool:
    """Tell whether a relation is one of lengths with numbers of rows: `Count` or `Counts`."""
    return isinstance(relation, Count | Counts)


def selected(relation: Rows | Count | RowNumbers) -> bool:
    """Tell whether rows are a selection, so that only equal selections have equally many rows."""
    return not isinstance(relation.length, str)


def as_rows(relation: Any) -> Any:
    """Return `Rows` for row numbers, which are one value for each row; any other relation as it is."""
    return Rows(0, relation.length) if isinstance(relation, RowNumbers) else relation


def rows_along(variable: Any, axis: int, length: Any) -> Relation:
    """Return the relation that an input needs beside rows: rows along ``axis``, or `SAME` if it is broadcast.

    It is broadcast if its length along ``axis`` is 1, or if ``axis`` is negative: an axis that it lacks.
    """
    split = 0 <= axis < variable.type.ndim and not variable.type.broadcastable[axis]
    return Rows(axis, length) if split else SAME


def without_axes(rows: Rows, axes: Iterable[int]) -> Rows:
    """Return where the rows are once other axes are gone."""
    return Rows(rows.axis - sum(axis < rows.axis for axis in axes), rows.length)


def common_part(given: Iterable[Relation]) -> Partial | None:
    """Return the one part that values are, beside values that are the same on all ranks; None otherwise."""
    found = set(given) - {SAME}
    part = found.pop() if len(found) == 1 else None
    return part if isinstance(part, Partial) else None


def first_rows(given: Iterable[Relation]) -> Rows | None:
    """Return the first relation that is `Rows`; None if there is none."""
    return next((relation for relation in given if isinstance(relation, Rows)), None)


def owned(given: Iterable[Relation]) -> Own | None:
    """Return the first relation that is `Own`; None if there is none."""
    return next((relation for relation in given if isinstance(relation, Own)), None)
