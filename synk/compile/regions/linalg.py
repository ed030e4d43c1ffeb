"""C texts of small factors and solutions, for which a call in Python would take longest, and of diagonals.

A matrix without a factor, or a singular one, makes the region give up: LAPACK says what becomes of it.
"""

from __future__ import annotations

from string import Template

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import AllocDiag, ExtractDiag
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular

from synk.compile.elementwise.body import Operand
from synk.compile.elementwise.templates import is_float
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copy, fill
from synk.compile.regions.writer import RegionWriter, type_of

FEW = 32  # rows

FACTOR = Template("""\
SHARED int NAME(const long n, const char *a, const long a0, const long a1, char *l, const long l0,
                const long l1)
{
#define A(i, j) (*(const $kind *)(a + (i) * a0 + (j) * a1))
#define L(i, j) (*($kind *)(l + (i) * l0 + (j) * l1))
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
            L(i, j) = i == j ? __builtin_sqrt(sum) : sum / L(j, j);
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
    for (long step = 0; step < n; step++) {
        const long i = $lower ? step : n - 1 - step;
        const $kind scale = $unit ? 1 : A(i, i);
        if (scale == 0)
            return 0;
        for (long k = $lower ? 0 : i + 1; k < ($lower ? i : n); k++)
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


@c_text.register(Blockwise)
def one_block(op: Blockwise, node: Apply, region: RegionWriter) -> None:
    """Compute the Op on the only block; of several, give up."""
    if op.batch_ndim(node):
        raise NoText("many blocks")
    c_text(op.core_op, node, region)


@c_text.register(Cholesky)
def cholesky(op: Cholesky, node: Apply, region: RegionWriter) -> None:
    """The factor."""
    (a,), (out,) = node.inputs, node.outputs
    n = few_rows(a, out)
    view = region.view(a)
    target = region.new(out, [str(n), str(n)])
    name = region.function(FACTOR.substitute(kind=type_of(out)))
    # An upper factor is the lower one of the transposed matrix, transposed.
    first, second = (0, 1) if op.lower else (1, 0)
    steps = [f"{one}.strides[{axis}]" for one in (view, target) for axis in (first, second)]
    region.demand(f"{name}({n}, {view}.data, {steps[0]}, {steps[1]}, {target}.data, {steps[2]}, {steps[3]})")


@c_text.register(SolveTriangular)
def solve_triangular(op: SolveTriangular, node: Apply, region: RegionWriter) -> None:
    """Each row from those before it, or after it."""
    (a, b), (out,) = node.inputs, node.outputs
    n, ndim = few_rows(a, out), b.type.ndim
    if b.type.dtype != out.type.dtype or b.type.shape[0] != n or not 1 <= ndim <= 2:
        raise NoText("another right side")
    view, given = region.view(a), region.view(b)
    target = region.new(out, [f"{given}.shape[{axis}]" for axis in range(ndim)])
    copy(region, given, target, Operand(out.type.dtype, (False,) * ndim))
    columns, step = (f"{given}.shape[1]", f"{target}.strides[1]") if ndim == 2 else ("1", "0")
    text = SOLUTION.substitute(kind=type_of(out), lower=int(op.lower), unit=int(op.unit_diagonal))
    region.demand(
        f"{region.function(text)}({n}, {columns}, {view}.data, {view}.strides[0], {view}.strides[1], "
        f"{target}.data, {target}.strides[0], {step})"
    )


def few_rows(matrix: Variable, out: Variable) -> int:
    """Return how many rows a square matrix has; NoText if nobody knows, or they are many."""
    rows, columns = matrix.type.shape if matrix.type.ndim == 2 else (None, None)
    if rows is None or rows != columns or rows > FEW:
        raise NoText("a matrix for LAPACK")
    if matrix.type.dtype != out.type.dtype or not is_float(out.type.dtype):
        raise NoText("a matrix of another dtype")
    return rows


@c_text.register(ExtractDiag)
def extract_diag(op: ExtractDiag, node: Apply, region: RegionWriter) -> None:
    """A view along both axes."""
    x = node.inputs[0]
    if x.type.ndim != 2 or len(node.inputs) > 1 or op.offset:
        raise NoText("another diagonal than that of a matrix")
    view = region.view(x)
    rows, columns = f"{view}.shape[0]", f"{view}.shape[1]"
    length = f"({rows} < {columns} ? {rows} : {columns})"
    steps = [f"{view}.strides[0] + {view}.strides[1]"]
    region.know_view(node.outputs[0], x, f"{view}.data", [length], steps)


@c_text.register(AllocDiag)
def alloc_diag(op: AllocDiag, node: Apply, region: RegionWriter) -> None:
    """A matrix of zeros but for its diagonal."""
    (x,), (out,) = node.inputs, node.outputs
    if x.type.ndim != 1 or op.offset or x.type.dtype != out.type.dtype:
        raise NoText("another diagonal than that of a matrix")
    view = region.view(x)
    target = region.new(out, [f"{view}.shape[0]"] * 2)
    fill(region, target, Operand(out.type.dtype, (False, False)), "0")
    steps = region.let_array(1, [f"{target}.strides[0] + {target}.strides[1]"])
    copy(
        region,
        view,
        region.let_view(f"{target}.data", f"{view}.shape", steps),
        Operand(out.type.dtype, (False,)),
    )
