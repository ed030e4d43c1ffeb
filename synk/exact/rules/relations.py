"""Say how a rank's value of a variable relates to the value that one process would compute.

    x, scattered             Rows(0)          the ranks' values, joined along axis 0, are it
    x.sum(axis=0)            Partial("sum")   the ranks' values, added up, are it
    x.shape[0]               Count()          as before; where it is a length, each rank makes its own rows
    w, x.shape[1]            SAME             each rank has it

A rule (`synk.exact.rules.table`) says which relations of an Op's inputs give which of its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Relation:
    """One of the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Same(Relation):
    """Every rank has one process's value."""


SAME = Same()
EACH, SCALED = "each", "scaled"


@dataclass(frozen=True, slots=True)
class Rows(Relation):
    """Every rank has a stretch of one process's value along ``axis``; in rank order they are all of it.

    ``length`` says how many: ``EACH``, the rows of the rank; ``SCALED``, those times a number that is the
    same on all ranks; or what tells a selection of rows, whose number nothing says beforehand, from others.
    """

    axis: int
    length: Any = EACH


@dataclass(frozen=True, slots=True)
class SomeRows(Relation):
    """As `Rows`, but one row on a rank that has none, which changes no extreme that is found by ``op``."""

    axis: int
    op: str


@dataclass(frozen=True, slots=True)
class Partial(Relation):
    """The values of the ranks, combined elementwise by ``op``, are one process's value.

    ``op`` is "sum", "prod", "min" or "max". What is ``picked`` of the rows is all on one rank, and 0 on the
    others, which is no number over 0, or times infinity.
    """

    op: str
    picked: bool = field(default=False, compare=False)


SUM = Partial("sum")


def keeps_parts(part: Partial, before: str, after: str) -> bool:
    """Tell whether parts of a value of dtype ``before`` are, each as dtype ``after``, parts of that value so.

    Integers go round where they are too large, and not alike in two dtypes; int64 is large enough for sums.
    """
    if before == after:
        return True
    if part.op in ("min", "max"):
        return before != "bool" and (after.startswith("float") or np.can_cast(before, after))
    exact = ("float", "complex", "int64") if part == SUM else ("float", "complex")
    return before.startswith(exact) and after.startswith(("float", "complex"))


@dataclass(frozen=True, slots=True)
class Count(Relation):
    """The number of this rank's rows, by ``length`` as of `Rows`; one process has the sum of them.

    Where it is the length of an array, every rank makes its own rows of the array.
    """

    length: Any = EACH


@dataclass(frozen=True, slots=True)
class Counts(Relation):
    """A vector of lengths, such as a shape: for each that is a `Count` its ``length``, None for others."""

    lengths: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowNumbers(Relation):
    """The positions of rows among those of this rank, all or some; joined they mean all ranks'.

    ``length`` is that of `Rows`.
    """

    length: Any = EACH


@dataclass(frozen=True, slots=True)
class Own(Relation):
    """A value of each rank's own, such as statistics of its part of a batch, as ``why`` declares.

    The mean over rows of all ranks' values stands for it.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Stream(Relation):
    """The state of random draws: every rank has its own."""


STREAM = Stream()


@dataclass(frozen=True, slots=True)
class Drawn(Relation):
    """Every rank has drawn a value where one process draws one for all rows: that of rank 0 stands for it."""


DRAWN = Drawn()


def counted(relation: Relation) -> bool:
    """Tell whether a relation is about numbers of rows, known on every rank without a collective."""
    return isinstance(relation, Count | Counts)


def selected(relation: Rows | Count | RowNumbers) -> bool:
    """Tell whether rows are a selection, whose number is that of no others."""
    return not isinstance(relation.length, str)


def as_rows(relation: Any) -> Any:
    """Return the relation of row numbers that are taken for values of rows; others as they are."""
    return Rows(0, relation.length) if isinstance(relation, RowNumbers) else relation


def rows_along(variable: Any, axis: int, length: Any) -> Relation:
    """Return the relation of a value beside rows: its own rows along ``axis``, or all of a single one.

    ``axis`` may be negative, where it is broadcast along axes in front that it does not have.
    """
    split = 0 <= axis < variable.type.ndim and not variable.type.broadcastable[axis]
    return Rows(axis, length) if split else SAME


def first_rows(given: Iterable[Relation]) -> Rows | None:
    """Return the first relation of rows."""
    return next((relation for relation in given if isinstance(relation, Rows)), None)


def owned(given: Iterable[Relation]) -> Own | None:
    """Return the first relation to each rank's own value."""
    return next((relation for relation in given if isinstance(relation, Own)), None)
