"""C texts of general systems of equations, inverses and determinants, by LAPACK's LU factors.

    matrix -> its factors, by columns, and for each row the one that it was exchanged with, counted from 1

A singular matrix has no inverse: the region gives up, and the Python implementation decides on the result.
"""

from __future__ import annotations

from string import Template
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.linalg.decomposition.lu import LUFactor, PivotToPermutations
from pytensor.tensor.linalg.inverse import MatrixInverse
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.summary import Det, SLogDet
from pytensor.tensor.sort import ArgSortOp

from synk.compile.native.routines import TABLE, number_of
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.linear_algebra import rows_of
from synk.compile.regions.lines import Text
from synk.compile.regions.memory import OwnMemory
from synk.compile.regions.region_writer import RegionWriter, type_of
from synk.compile.regions.views import View
from synk.compile.regions.walks import copy

FACTOR = Template("""\
SHARED int NAME(const View *a, void *factors, void *exchanged)
{
    const long n = a->shape[0];
    int rows = n, info = 0;
    const int others = let_others(n * n);
    for (long j = 0; j < n; j++)
        for (long i = 0; i < n; i++)
            (($kind *)factors)[i + j * n] = *(const $kind *)(a->data + i * a->strides[0] + j * a->strides[1]);
    if (n)
        ((void (*)(int *, int *, void *, int *, void *, int *))routines[$getrf])(&rows, &rows, factors, &rows,
                                                                                  exchanged, &info);
    if (others)
        come_back();
    return info;
}
""")

SOLUTION = Template("""\
SHARED void NAME(const long n, const long m, const void *factors, const void *exchanged, void *x)
{
    int rows = n, columns = m, info;
    const int others = let_others(n * m);
    if (n && m)
        ((void (*)(char *, int *, int *, const void *, int *, const void *, void *, int *, int *))
             routines[$getrs])("$way", &rows, &columns, factors, &rows, exchanged, x, &rows, &info);
    if (others)
        come_back();
}
""")

# By logarithms, as NumPy computes determinants: a product would overflow sooner.
DETERMINANT = Template("""\
SHARED void NAME(const long n, const $kind *factors, const int *exchanged, $kind *sign, $kind *logarithm)
{
    for (long i = 0; i < n; i++) {
        const $kind x = factors[i + i * n];
        *sign *= (x < 0) == (exchanged[i] == i + 1) ? -1 : 1;
        *logarithm += __builtin_log$suffix(x < 0 ? -x : x);
    }
}
""")

ROWS = """\
SHARED int NAME(const View *exchanged, long *rows)
{
    const long n = exchanged->shape[0];
    for (long i = 0; i < n; i++)
        rows[i] = i;
    for (long i = 0; i < n; i++) {
        const long other = *(const int *)(exchanged->data + i * exchanged->strides[0]), row = rows[i];
        if (other < 0 || other >= n)
            return 0;
        rows[i] = rows[other];
        rows[other] = row;
    }
    return 1;
}
"""


class Factors(NamedTuple):
    """The LU factors of a matrix, as names in the text."""

    n: str  # rows
    matrix: View
    exchanged: View
    info: str  # not 0 for a singular matrix


def factors_of(region: RegionWriter, a: Variable, out: Variable, turned: bool = False) -> Factors:
    """Add the lines that factor a matrix of the dtype of ``out``; or with ``turned`` its transpose."""
    n, kind, view = rows_of(region, a, out), type_of(out), region.variables.view(a)
    if turned:
        view = region.text.declare_view(view.dtype, view.at(), view.shape[::-1], view.strides[::-1])
    region.text.demand(f"{n} < COUNTABLE")
    region.text.declarations[TABLE] = None
    text = FACTOR.substitute(kind=kind, getrf=number_of("getrf", kind))
    matrix, exchanged = region.memory.scratch(out.type.dtype, [n, n]), region.memory.scratch("int32", [n])
    call = f"{region.text.function(text)}(&{view}, {matrix}.data, {exchanged}.data)"
    return Factors(n, matrix, exchanged, region.text.let("int", call))


def solve_by(text: Text, factors: Factors, columns: str, x: View, turned: bool = False) -> None:
    """Add the lines that replace the right sides in ``x``, column by column, by the solutions.

    ``turned`` says that the factors are those of the transposed matrix.
    """
    n, matrix, exchanged, info = factors
    text.demand(f"!{info} && {columns} < COUNTABLE")
    solution = SOLUTION.substitute(getrs=number_of("getrs", x.kind), way="T" if turned else "N")
    text.line(f"{text.function(solution)}({n}, {columns}, {matrix}.data, {exchanged}.data, {x}.data);")


def by_columns(memory: OwnMemory, x: View, n: str, lengths: list[str]) -> View:
    """Return a view of the elements of ``x`` as a matrix that lies column by column."""
    size = np.dtype(x.dtype).itemsize
    return memory.subview(x, f"{x}.data", lengths, [f"{size}", f"{n} * {size}"][: len(lengths)])


@c_text.register(Solve)
def solve(op: Solve, node: Apply, region: RegionWriter) -> None:
    """Solve a general system of equations."""
    (a, b), (out,) = node.inputs, node.outputs
    if op.assume_a != "gen" or b.type.dtype != out.type.dtype or not 1 <= b.type.ndim <= 2:
        raise NoText("a system of another kind")
    # LAPACK takes the matrix by columns, and so reads one that lies by rows as its transpose. The Python
    # program passes it like that too, and both must round alike.
    factors, given = factors_of(region, a, out, turned=True), region.variables.view(b)
    columns = given.shape[1] if given.ndim == 2 else "1"
    region.text.demand(f"{given.shape[0]} == {factors.n}")
    x = region.memory.scratch(out.type.dtype, given.shape)
    solutions = by_columns(region.memory, x, factors.n, given.shape)
    copy(region.text, given, solutions)
    solve_by(region.text, factors, columns, x, turned=True)
    copy(region.text, solutions, region.variables.new(out, given.shape))


@c_text.register(MatrixInverse)
def inverse(op: MatrixInverse, node: Apply, region: RegionWriter) -> None:
    """Compute the inverse, by solving for the columns of the identity."""
    (a,), (out,) = node.inputs, node.outputs
    factors = factors_of(region, a, out)
    n = factors.n
    x = region.memory.scratch(out.type.dtype, [n, n])
    region.text.line(f"for (long k = 0; k < {n} * {n}; k++)")
    region.text.line(f"    (({x.kind} *){x}.data)[k] = k % ({n} + 1) == 0;")
    solve_by(region.text, factors, n, x)
    copy(region.text, by_columns(region.memory, x, n, [n, n]), region.variables.new(out, [n, n]))


@c_text.register(Det)
@c_text.register(SLogDet)
def determinant(op: Det | SLogDet, node: Apply, region: RegionWriter) -> None:
    """Compute a determinant, or its sign and logarithm, from the diagonal of the factors."""
    factors = factors_of(region, node.inputs[0], node.outputs[0])
    n, matrix, exchanged, info = factors
    kind = type_of(node.outputs[0])
    suffix = "f" if kind == "float" else ""
    text = DETERMINANT.substitute(kind=kind, suffix=suffix)
    sign = region.text.declare_variable(kind, f"{info} ? 0 : 1")
    logarithm = region.text.declare_variable(kind, f"{info} ? -__builtin_inf() : 0")
    arguments = f"{info} ? 0 : {n}, ({kind} *){matrix}.data, (int *){exchanged}.data, &{sign}, &{logarithm}"
    region.text.line(f"{region.text.function(text)}({arguments});")
    if isinstance(op, Det):
        region.variables.bind_number(node.outputs[0], f"{sign} * __builtin_exp{suffix}({logarithm})")
    else:
        region.variables.bind(node.outputs[0], sign)
        region.variables.bind(node.outputs[1], logarithm)


@c_text.register(LUFactor)
def lu_factor(op: LUFactor, node: Apply, region: RegionWriter) -> None:
    """Compute both factors in one matrix, and the row exchanges counted from 0."""
    (a,), (packed, pivots) = node.inputs, node.outputs
    if pivots.type.dtype != "int32":
        raise NoText("exchanges of another dtype")
    n, matrix, exchanged, info = factors_of(region, a, packed)
    region.text.demand(f"!{info}")
    results = region.variables.new(packed, [n, n]), region.variables.new(pivots, [n])
    copy(region.text, by_columns(region.memory, matrix, n, [n, n]), results[0])
    region.text.line(f"for (long k = 0; k < {n}; k++)")
    region.text.line(f"    *(int *)({results[1].at('k')}) = ((int *){exchanged}.data)[k] - 1;")


@c_text.register(PivotToPermutations)
def permutation(op: PivotToPermutations, node: Apply, region: RegionWriter) -> None:
    """Compute the order of rows, or its inverse, that a list of row exchanges leads to."""
    (pivots,), (out,) = node.inputs, node.outputs
    if pivots.type.dtype != "int32" or out.type.dtype != "int64":
        raise NoText("exchanges of another dtype")
    view = region.variables.view(pivots)
    found = region.memory.scratch("int64", view.shape)
    region.text.demand(f"{region.text.function(ROWS)}(&{view}, (long *){found}.data)")
    if op.inverse:
        copy(region.text, found, region.variables.new(out, view.shape))
    else:
        invert(region, found, out)


@c_text.register(ArgSortOp)
def argsort(op: ArgSortOp, node: Apply, region: RegionWriter) -> None:
    """Sort a permutation, which is to invert it; raise NoText for other numbers."""
    numbers = node.inputs[0]
    if not isinstance(numbers.owner and numbers.owner.op, PivotToPermutations):
        raise NoText("a sort of other numbers than a permutation")
    invert(region, region.variables.view(numbers), node.outputs[0])


def invert(region: RegionWriter, permutation: View, out: Variable) -> None:
    """Add the lines that compute the inverse of a permutation."""
    target = region.variables.new(out, permutation.shape)
    region.text.line(f"for (long k = 0; k < {target.shape[0]}; k++)")
    at = target.at(f"*(long *)({permutation.at('k')})")
    region.text.line(f"    *(long *)({at}) = k;")
