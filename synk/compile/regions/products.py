"""C texts of products: sums of products of elements, by BLAS where it is faster than a loop.

A product of a matrix and a vector reads each element once, so a loop is as fast as memory; it goes along the
matrix as it lies there. A large product of matrices is a line of Python's, but not in the step of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import itemgetter
from string import Template

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.blas import Dot22, Dot22Scalar, Gemm, Gemv
from pytensor.tensor.math import Dot
from pytensor.tensor.signal.conv import Convolve1d

from synk.compile.compat import Ger
from synk.compile.elementwise.body import Body, Operand
from synk.compile.elementwise.dialect import TYPES
from synk.compile.elementwise.templates import arithmetic, is_float
from synk.compile.elementwise.writer import Value
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import Fold, copy, fill, loop_text, run
from synk.compile.regions.writer import RegionWriter

FEW = (
    32**3
)  # products of numbers: a product of matrices takes less time in a loop than its call takes in Python


@c_text.register(Dot)
@c_text.register(Dot22)
def dot(op, node: Apply, region: RegionWriter) -> None:
    """A product of vectors and matrices."""
    (left, right), (out,) = node.inputs, node.outputs
    product(region, left, right, out, None)


@c_text.register(Gemv)
def gemv(op, node: Apply, region: RegionWriter) -> None:
    """``beta * y + alpha * A @ x``."""
    y, alpha, matrix, x, beta = node.inputs
    (out,) = node.outputs
    dtype, scratch = out.type.dtype, product(region, matrix, x, None, out.type.dtype)
    view, a, b = region.view(y), region.number(alpha), region.number(beta)
    region.demand(f"{view}.shape[0] == {scratch}.shape[0]")
    target = region.new(out, [f"{scratch}.shape[0]"])
    vector, number = Operand(dtype, (False,)), Operand(dtype, (True,))
    numbers = [_number_view(region, value, dtype) for value in (a, b)]
    # As BLAS has it, a beta of 0 means that nothing is read.
    body = Body(
        (vector, vector, number, number),
        (vector,),
        (),
        ("x3 == 0 ? x2 * x0 : x3 * x1 + x2 * x0",),
        frozenset(),
    )
    run(region, body, [scratch, view, *numbers, target])


@c_text.register(Gemm)
def gemm(op, node: Apply, region: RegionWriter) -> None:
    """``beta * z + alpha * x @ y``."""
    z, alpha, x, y, beta = node.inputs
    scaled_product(region, x, y, node.outputs[0], alpha, (z, beta))


@c_text.register(Dot22Scalar)
def dot_scalar(op, node: Apply, region: RegionWriter) -> None:
    """``alpha * x @ y``."""
    x, y, alpha = node.inputs
    scaled_product(region, x, y, node.outputs[0], alpha, None)


def scaled_product(
    region: RegionWriter,
    x: Variable,
    y: Variable,
    out: Variable,
    alpha: Variable,
    added: tuple[Variable, Variable] | None,
) -> None:
    """Add ``alpha * x @ y``, and ``beta * z`` if z and beta are ``added``: by one call of BLAS, or loops."""
    if not region.in_block:
        raise NoText("a product for BLAS")
    dtype, left, right, factor = out.type.dtype, region.view(x), region.view(y), region.number(alpha)
    target = region.new(out, [f"{left}.shape[0]", f"{right}.shape[1]"])
    operand, number = Operand(dtype, (False, False)), Operand(dtype, (True, True))
    numbers = [_number_view(region, factor, dtype)]
    beta, read = "0", []
    if added is not None:
        before, beta = region.view(added[0]), region.number(added[1])
        for axis in range(2):
            region.demand(f"{before}.shape[{axis}] == {target}.shape[{axis}]")
        copy(region, before, target, operand)
        read.append(before)
        numbers.append(_number_view(region, beta, dtype))
    region.demand(f"{left}.shape[1] == {right}.shape[0]")
    region.line(f"if (!gemm_{TYPES[dtype]}({factor}, &{left}, &{right}, {beta}, &{target})) {{")
    scratch = product(region, x, y, None, dtype)
    # As BLAS has it, a beta of 0 means that nothing is read.
    text = "x3 == 0 ? x2 * x0 : x3 * x1 + x2 * x0" if added else "x1 * x0"
    operands = (operand,) * (1 + len(read)) + (number,) * len(numbers)
    run(region, Body(operands, (operand,), (), (text,), frozenset()), [scratch, *read, *numbers, target])
    region.line("}")


@c_text.register(Ger)
def ger(op, node: Apply, region: RegionWriter) -> None:
    """``A + alpha * outer(x, y)``."""
    matrix, alpha, x, y = node.inputs
    (out,) = node.outputs
    dtype = out.type.dtype
    a, left, right = region.view(matrix), region.view(x), region.view(y)
    region.demand(f"{a}.shape[0] == {left}.shape[0] && {a}.shape[1] == {right}.shape[0]")
    target = region.new(out, [f"{a}.shape[0]", f"{a}.shape[1]"])
    column = _spread(region, left, [f"{left}.shape[0]", "1"], [f"{left}.strides[0]", "0"])
    row = _spread(region, right, ["1", f"{right}.shape[0]"], ["0", f"{right}.strides[0]"])
    scale = _number_view(region, region.number(alpha), dtype)
    operands = [
        Operand(dtype, pattern) for pattern in ((False, False), (False, True), (True, False), (True, True))
    ]
    body = Body(tuple(operands), (operands[0],), (), ("x0 + x3 * x1 * x2",), frozenset())
    run(region, body, [a, column, row, scale, target])


CONVOLUTION = Template("""\
SHARED int NAME(const View *x, const View *y, const int full, const View *out)
{
    if (x->shape[0] < y->shape[0])
        return NAME(y, x, full, out);
    const long n = x->shape[0], k = y->shape[0], by_x = x->strides[0], by_out = out->strides[0];
    const long count = full ? n : n - k + 1;
    for (long j = 0; j < k; j++) {
        const $kind scale = *(const $kind *)(y->data + j * y->strides[0]);
        const char *const from = x->data + (full ? 0 : k - 1 - j) * by_x;
        char *const to = out->data + (full ? j : 0) * by_out;
        if (by_x == sizeof($kind) && by_out == sizeof($kind))
            for (long i = 0; i < count; i++)
                (($kind *)to)[i] += scale * ((const $kind *)from)[i];
        else
            for (long i = 0; i < count; i++)
                *($kind *)(to + i * by_out) += scale * *(const $kind *)(from + i * by_x);
    }
    return 1;
}
""")


@c_text.register(Convolve1d)
def convolution(op: Convolve1d, node: Apply, region: RegionWriter) -> None:
    """Add multiples of the longer vector, each a place further on."""
    x, y, mode = node.inputs
    (out,) = node.outputs
    if not x.type.dtype == y.type.dtype == out.type.dtype or not is_float(out.type.dtype):
        raise NoText("a convolution of several dtypes")
    left, right, full = region.view(x), region.view(y), region.number(mode)
    n, k = f"{left}.shape[0]", f"{right}.shape[0]"
    region.demand(f"{n} && {k}")  # of nothing there is no convolution
    target = region.new(out, [f"{full} ? {n} + {k} - 1 : {n} < {k} ? {k} - {n} + 1 : {n} - {k} + 1"])
    fill(region, target, Operand(out.type.dtype, (False,)), "0")
    text = CONVOLUTION.substitute(kind=TYPES[out.type.dtype])
    region.line(f"{region.function(text)}(&{left}, &{right}, {full}, &{target});")


def _number_view(region: RegionWriter, value: str, dtype: str) -> str:
    name = region.let_later(TYPES[dtype], value)
    return region.let_view(f"&{name}", "0", "0")


def _spread(region: RegionWriter, view: str, shape: Sequence[str], strides: Sequence[str]) -> str:
    n, s = region.let_array(len(shape), shape), region.let_array(len(strides), strides)
    return region.let_view(f"{view}.data", n, s)


def product(
    region: RegionWriter, left: Variable, right: Variable, out: Variable | None, dtype: str | None
) -> str:
    """Add a product and return its view: of ``out``, or memory for this node, of ``dtype``."""
    kind = dtype or out.type.dtype  # type: ignore[union-attr]
    n_left, n_right = left.type.ndim, right.type.ndim
    if left.type.dtype != kind or right.type.dtype != kind or not is_float(kind):
        raise NoText("a product of several dtypes")
    if not n_left or not n_right or n_left > 2 or n_right > 2:
        raise NoText("a product of something else than vectors and matrices")
    shapes = [variable.type.shape for variable in (left, right)]
    if n_left == n_right == 2 and not region.in_block:
        sizes = [*shapes[0], shapes[1][1]]
        if None in sizes or prod(sizes) > FEW:
            raise NoText("a product for BLAS")
    a, b = region.view(left), region.view(right)
    inner = f"{a}.shape[{n_left - 1}]"
    region.demand(f"{inner} == {b}.shape[0]")
    # All three axes: of the rows of the first, of what is summed, of the columns of the second.
    rows, columns = (f"{a}.shape[0]" if n_left == 2 else "1"), (f"{b}.shape[1]" if n_right == 2 else "1")
    steps_a = [f"{a}.strides[0]" if n_left == 2 else "0", f"{a}.strides[{n_left - 1}]", "0"]
    steps_b = ["0", f"{b}.strides[0]", f"{b}.strides[1]" if n_right == 2 else "0"]
    kept = [axis for axis, there in enumerate((n_left == 2, False, n_right == 2)) if there]
    lengths = [(rows, inner, columns)[axis] for axis in kept]
    fold = (f"({TYPES[kind]})({arithmetic('+', Value('a', kind), Value('b', kind))})", "0")
    if not kept:
        place = region.let_later(TYPES[kind])
        target, steps_out = region.let_view(f"&{place}", "0", "0"), ["0", "0", "0"]
    else:
        target = (
            region.new(out, lengths)
            if out is not None
            else region.scratch(len(kept), kind, region.let_array(len(kept), lengths))
        )
        where = {axis: f"{target}.strides[{k}]" for k, axis in enumerate(kept)}
        steps_out = [where.get(axis, "0") for axis in range(3)]
    if kept == [0]:
        steps = ", ".join(steps_a[:2])
        region.line(f"if (!gemv_{TYPES[kind]}({a}.data, {rows}, {inner}, {steps}, &{b}, &{target})) {{")
    elif kept == [2]:
        steps = ", ".join(steps_b[:0:-1])
        region.line(f"if (!gemv_{TYPES[kind]}({b}.data, {columns}, {inner}, {steps}, &{a}, &{target})) {{")
    elif len(kept) == 2:
        region.line(f"if (!gemm_{TYPES[kind]}(1, &{a}, &{b}, 0, &{target})) {{")
    else:
        region.line("{")
    if kept:
        fill(region, target, Operand(kind, (False,) * len(kept)), "0")
    there = [axis for axis in range(3) if axis == 1 or axis in kept]
    # The walk goes along the first operand as it lies: along the matrix.
    factors = sorted([(n_left, a, steps_a, 2), (n_right, b, steps_b, 0)], reverse=True, key=itemgetter(0))
    operands = [(view, steps) for _, view, steps, _ in factors] + [(target, steps_out)]
    shape = region.let_array(len(there), [(rows, inner, columns)[axis] for axis in there])
    views = [
        region.let_view(f"{view}.data", shape, region.let_array(len(there), [steps[axis] for axis in there]))
        for view, steps in operands
    ]
    absent = [tuple(axis == gone for axis in there) for *_, gone in factors]
    body = Body(
        (Operand(kind, absent[0]), Operand(kind, absent[1])),
        (Operand(kind, (False,) * len(there)),),
        (),
        (arithmetic("*", Value("x0", kind), Value("x1", kind)),),
        frozenset(),
    )
    name = region.function(loop_text(body, [], [(0, Fold(kind, (there.index(1),), *fold))]))
    region.line(f"{name}({shape}, (const View *const[]){{{', '.join(f'&{view}' for view in views)}}});")
    region.line("}")
    if not kept and out is not None:
        region.bind(out, place)
    return target
