"""C texts of Cholesky factors, triangular solutions and diagonals; loops for few rows, else LAPACK and BLAS.

If a matrix has no factor, or is singular, the region gives up, and the Python implementation decides on the
result.
"""

from __future__ import annotations

from string import Template

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import AllocDiag, ExtractDiag
from pytensor.tensor.linalg.constructors import BlockDiagonal
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular

from synk.compile.native.routines import TABLE, number_of
from synk.compile.programs.elementwise.templates import is_float
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import type_of
from synk.compile.regions.walks import copy, fill

FEW = 32  # rows: for so many a loop takes less time than LAPACK

FACTOR = Template("""\
SHARED int NAME(const long n, const char *a, const long a0, const long a1, char *l, const long l0,
                const long l1)
{
#define A(i, j) (*(const $kind *)(a + (i) * a0 + (j) * a1))
#define L(i, j) (*($kind *)(l + (i) * l0 + (j) * l1))
    if (n > $few && n < COUNTABLE) {
        /* LAPACK takes columns for rows. */
        const int by_rows = l1 == sizeof($kind);
        int m = n, info = 0, lead = (by_rows ? l0 : l1) / sizeof($kind);
        const int others = let_others(n * n);
        for (long outer = 0; outer < n; outer++)
            for (long inner = 0; inner < n; inner++) {
                const long i = by_rows ? outer : inner, j = by_rows ? inner : outer;
                L(i, j) = i < j ? 0 : A(i, j);
            }
        ((void (*)(char *, int *, void *, int *, int *))routines[$potrf])(by_rows ? "U" : "L", &m, l, &lead,
                                                                          &info);
        if (others)
            come_back();
        return info == 0;
    }
    for (long j = 0; j < n; j++)
        for (long i = 0; i < n; i++) {
            if (i < j) {
                L(i, j) = 0;
                continue;
            }
            $kind sum = A(i, j);
            for (long k = 0; k < j; k++)
                sum -= L(i, k) * L(j, k);
            if (i == j && !(sum > 0))
                return 0;
            L(i, j) = i == j ? __builtin_sqrt$suffix(sum) : sum / L(j, j);
        }
    return 1;
#undef A
#undef L
}
""")

SOLUTION = Template("""\
SHARED int NAME(const long n, const long m, const char *a, const long a0, const long a1, char *x,
                const long x0, const long x1)
{
#define A(i, j) (*(const $kind *)(a + (i) * a0 + (j) * a1))
#define X(i, j) (*($kind *)(x + (i) * x0 + (j) * x1))
    const long size = sizeof($kind), lead = a1 == size ? a0 : a1;
    for (long i = 0; i < n; i++)
        if (!$unit && A(i, i) == 0)
            return 0;
    if (n > $few && m > 0 && m < COUNTABLE && x0 == m * size && (a0 == size || a1 == size) && lead >= n * size
        && lead % size == 0 && lead < COUNTABLE) {
        /* BLAS takes rows for columns, so the matrix is on the right; of one column it makes less by trsv. */
        int rows = m, columns = n, step = lead / size;
        $kind one = 1;
        char *const half = ($lower) == (a1 == size) ? "U" : "L", *const unit = $unit ? "U" : "N";
        const int others = let_others(n * n);
        if (m == 1)
            ((void (*)(char *, char *, char *, int *, const void *, int *, void *, int *))routines[$trsv])(
                half, a1 == size ? "T" : "N", unit, &columns, a, &step, x, &rows);
        else
        ((void (*)(char *, char *, char *, char *, int *, int *, $kind *, const void *, int *, void *, int *))
             routines[$trsm])("R", half, a1 == size ? "N" : "T", unit, &rows, &columns, &one, a, &step, x,
                              &rows);
        if (others)
            come_back();
        return 1;
    }
    for (long step = 0; step < n; step++) {
        const long i = $lower ? step : n - 1 - step, first = $lower ? 0 : i + 1, last = $lower ? i : n;
        const $kind scale = $unit ? 1 : A(i, i);
        if (m == 1) {
            $kind sum = X(i, 0);
            for (long k = first; k < last; k++)
                sum -= A(i, k) * X(k, 0);
            X(i, 0) = sum / scale;
            continue;
        }
        for (long k = first; k < last; k++)
            for (long j = 0; j < m; j++)
                X(i, j) -= A(i, k) * X(k, j);
        for (long j = 0; j < m; j++)
            X(i, j) /= scale;
    }
    return 1;
#undef A
#undef X
}
""")


@c_text.register(Cholesky)
def cholesky(op: Cholesky, node: Apply, region: RegionWriter) -> None:
    """Write C that computes the lower or the upper Cholesky factor of a matrix."""
    (a,), (out,) = node.inputs, node.outputs
    n, kind = rows_of(region, a, out), type_of(out)
    view, target = region.variables.view(a), region.variables.new(out, [n, n])
    text = FACTOR.substitute(
        kind=kind, few=FEW, suffix="f" if kind == "float" else "", potrf=number_of("potrf", kind)
    )
    region.text.declarations[TABLE] = None
    # An upper factor is the lower one of the transposed matrix, transposed.
    first, second = (0, 1) if op.lower else (1, 0)
    steps = [one.strides[axis] for one in (view, target) for axis in (first, second)]
    arguments = [n, f"{view}.data", *steps[:2], f"{target}.data", *steps[2:]]
    region.text.demand(f"{region.text.function(text)}({', '.join(arguments)})")


@c_text.register(SolveTriangular)
def solve_triangular(op: SolveTriangular, node: Apply, region: RegionWriter) -> None:
    """Write C that solves a triangular system for a vector, or for the columns of a matrix.

    BLAS does it if the system is large and its layout allows that; else it is done row by row, from the last
    row if the matrix is upper.
    """
    (a, b), (out,) = node.inputs, node.outputs
    n, ndim, kind = rows_of(region, a, out), b.type.ndim, type_of(out)
    if b.type.dtype != out.type.dtype or not 1 <= ndim <= 2:
        raise NoText("a right side of another dtype, or with more than two axes")
    view, given = region.variables.view(a), region.variables.view(b)
    region.text.demand(f"{given.shape[0]} == {n}")
    target = region.variables.new(out, given.shape)
    copy(region.text, given, target)
    columns, step = (given.shape[1], target.strides[1]) if ndim == 2 else ("1", "0")
    text = SOLUTION.substitute(
        kind=kind,
        few=FEW,
        lower=int(op.lower),
        unit=int(op.unit_diagonal),
        trsm=number_of("trsm", kind),
        trsv=number_of("trsv", kind),
    )
    region.text.declarations[TABLE] = None
    steps = ", ".join([*view.strides, f"{target}.data", target.strides[0], step])
    region.text.demand(f"{region.text.function(text)}({n}, {columns}, {view}.data, {steps})")


def rows_of(region: RegionWriter, matrix: Variable, out: Variable) -> str:
    """Return a square matrix's number of rows; raise NoText unless it is of the float dtype of ``out``."""
    if matrix.type.ndim != 2 or matrix.type.dtype != out.type.dtype or not is_float(out.type.dtype):
        raise NoText("a matrix of another dtype")
    view = region.variables.view(matrix)
    region.text.demand(f"{view.shape[0]} == {view.shape[1]}")
    return region.variables.length(matrix, 0)


@c_text.register(ExtractDiag)
def extract_diag(op: ExtractDiag, node: Apply, region: RegionWriter) -> None:
    """View the diagonal of two axes as one axis, which comes last."""
    x = node.inputs[0]
    if len(node.inputs) > 1 or op.offset:
        raise NoText("another diagonal than the main one")
    view, pair = region.variables.view(x), (op.axis1, op.axis2)
    kept = [axis for axis in range(x.type.ndim) if axis not in pair]
    rows, columns = (view.shape[axis] for axis in pair)
    lengths = [*(view.shape[axis] for axis in kept), f"({rows} < {columns} ? {rows} : {columns})"]
    steps = [*(view.strides[axis] for axis in kept), " + ".join(view.strides[axis] for axis in pair)]
    region.variables.bind_view(node.outputs[0], x, view.at(), lengths, steps)


@c_text.register(AllocDiag)
def alloc_diag(op: AllocDiag, node: Apply, region: RegionWriter) -> None:
    """Make a matrix that is zero but for its diagonal."""
    (x,), (out,) = node.inputs, node.outputs
    if x.type.ndim != 1 or op.offset or x.type.dtype != out.type.dtype:
        raise NoText("another diagonal than that of a matrix")
    view = region.variables.view(x)
    target = region.variables.new(out, view.shape * 2)
    fill(region.text, target)
    copy(
        region.text,
        view,
        region.text.declare_view(view.dtype, target.at(), view.shape, [" + ".join(target.strides)]),
    )


@c_text.register(BlockDiagonal)
def block_diagonal(op: BlockDiagonal, node: Apply, region: RegionWriter) -> None:
    """Make a matrix that is zero but for the given matrices along its diagonal."""
    (out,) = node.outputs
    if any(matrix.type.dtype != out.type.dtype for matrix in node.inputs):
        raise NoText("matrices of another dtype")
    views = [region.variables.view(matrix) for matrix in node.inputs]
    target = region.variables.new(out, [" + ".join(view.shape[axis] for view in views) for axis in range(2)])
    fill(region.text, target)
    row, column = region.text.declare_variable("long"), region.text.declare_variable("long")
    for view in views:
        place = region.text.declare_view(view.dtype, target.at(row, column), view.shape, target.strides)
        copy(region.text, view, place)
        region.text.line(f"{row} += {view.shape[0]}; {column} += {view.shape[1]};")
