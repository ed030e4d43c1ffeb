"""C texts of products of matrices and vectors, by BLAS, and of convolutions.

For BLAS a vector is a matrix with an axis of length 1. Outside of loops, a large product of matrices is left
to the Python program, whose overhead is small beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import Template

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.blas import Dot22, Gemv
from pytensor.tensor.math import Dot
from pytensor.tensor.signal.conv import Convolve1d

from synk.compile.compat import Ger
from synk.compile.native.routines import TABLE
from synk.compile.programs.elementwise.body import Body, Operand
from synk.compile.programs.elementwise.dialect import TYPES
from synk.compile.programs.elementwise.templates import is_float
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.lines import Text
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import type_of
from synk.compile.regions.views import View
from synk.compile.regions.walks import fill, run, whole

# Multiplications: a product of matrices with so many takes less time than a call from Python.
FEW = 32**3


@c_text.register(Dot)
@c_text.register(Dot22)
def dot(op, node: Apply, region: RegionWriter) -> None:
    """Multiply vectors and matrices."""
    (left, right), (out,) = node.inputs, node.outputs
    product(region, left, right, out)


@c_text.register(Gemv)
def gemv(op, node: Apply, region: RegionWriter) -> None:
    """Compute ``beta * y + alpha * A @ x``."""
    y, alpha, matrix, x, beta = node.inputs
    (out,) = node.outputs
    scratch, view = product(region, matrix, x, out.type()), region.variables.view(y)
    region.text.demand_same(view.shape, scratch.shape)
    target = region.variables.new(out, scratch.shape)
    scaled = [scratch, view, *(_number(region, value, out) for value in (alpha, beta))]
    run(region.text, _body("x3 == 0 ? x2 * x0 : x3 * x1 + x2 * x0", scaled, target), [*scaled, target])


def _body(text: str, read: Sequence[View], target: View) -> Body:
    """Return the body that computes an element of ``target`` from those of other views, or from numbers."""
    inputs = tuple(Operand(one.dtype, (not one.ndim,) * target.ndim) for one in read)
    return Body(inputs, (whole(target),), (), (text,), frozenset())


@c_text.register(Ger)
def ger(op, node: Apply, region: RegionWriter) -> None:
    """Compute ``A + alpha * outer(x, y)``."""
    matrix, alpha, x, y = node.inputs
    (out,) = node.outputs
    a, left, right = region.variables.view(matrix), region.variables.view(x), region.variables.view(y)
    region.text.demand_same(a.shape, left.shape + right.shape)
    target = region.variables.new(out, a.shape)
    column = region.text.declare_view(a.dtype, left.at(), a.shape, [*left.strides, "0"])
    row = region.text.declare_view(a.dtype, right.at(), a.shape, ["0", *right.strides])
    read = [a, column, row, _number(region, alpha, out)]
    run(region.text, _body("x0 + x3 * x1 * x2", read, target), [*read, target])


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
    """Add up multiples of the longer vector, each shifted by one place against the one before."""
    x, y, mode = node.inputs
    (out,) = node.outputs
    if not x.type.dtype == y.type.dtype == out.type.dtype or not is_float(out.type.dtype):
        raise NoText("a convolution of several dtypes")
    left, right, full = region.variables.view(x), region.variables.view(y), region.variables.number(mode)
    (n,), (k,) = left.shape, right.shape
    region.text.demand(f"{n} && {k}")  # an empty vector is an error, which Python raises
    target = region.variables.new(
        out, [f"{full} ? {n} + {k} - 1 : {n} < {k} ? {k} - {n} + 1 : {n} - {k} + 1"]
    )
    fill(region.text, target)
    text = CONVOLUTION.substitute(kind=target.kind)
    region.text.line(f"{region.text.function(text)}(&{left}, &{right}, {full}, &{target});")


def _number(region: RegionWriter, value: Variable, out: Variable) -> View:
    """Return the view of a number, converted to the dtype of ``out``."""
    return region.text.number_view(
        out.type.dtype, region.text.let(type_of(out), region.variables.number(value))
    )


def product(region: RegionWriter, left: Variable, right: Variable, out: Variable) -> View:
    """Add the line that multiplies two variables; return the view of the product, ``out``."""
    dtype = out.type.dtype
    n_left, n_right = left.type.ndim, right.type.ndim
    if left.type.dtype != dtype or right.type.dtype != dtype or not is_float(dtype):
        raise NoText("a product of several dtypes")
    if not n_left or not n_right or n_left > 2 or n_right > 2:
        raise NoText("a product of something else than vectors and matrices")
    if n_left == n_right == 2 and not region.text.in_loop:
        sizes = [*left.type.shape, right.type.shape[1]]
        if None in sizes or prod(sizes) > FEW:
            raise NoText("a product for BLAS")
    a, b = region.variables.view(left), region.variables.view(right)
    region.text.demand(f"{a.shape[-1]} == {b.shape[0]}")
    lengths = a.shape[:-1] + b.shape[1:]
    factors = [as_blas_reads(region, one) for one in (_matrix(region.text, a, 0), _matrix(region.text, b, 1))]
    if lengths:
        target = region.variables.new(out, lengths)
    else:
        region.variables.bind(out, region.text.declare_variable(TYPES[dtype]))
        target = region.text.number_view(dtype, region.variables.number(out))
    place = _matrix(region.text, _matrix(region.text, target, 0) if n_left == 1 else target, 1)
    region.text.declarations[TABLE] = None
    region.text.line(f"multiply_{TYPES[dtype]}(routines, &{factors[0]}, &{factors[1]}, &{place});")
    return target


def _matrix(text: Text, view: View, axis: int) -> View:
    """Return a view with two axes; a vector gets another axis of length 1 at ``axis``."""
    if view.ndim == 2:
        return view
    shape, strides = view.shape, view.strides
    shape.insert(axis, "1")
    strides.insert(axis, "0")
    return text.declare_view(view.dtype, view.at(), shape, strides)


def as_blas_reads(region: RegionWriter, matrix: View, way: str = "") -> View:
    """Return the view of a matrix if BLAS can read it as it lies in memory, else of a copy by rows.

    BLAS reads matrices by rows and by columns. ``way`` is C behind the letter that tells which it is: with
    ``"== 'N'"`` a matrix that lies by columns is copied too.
    """
    lead, size = region.text.declare_variable("int"), np.dtype(matrix.dtype).itemsize
    return region.memory.copied_unless(f"lies(&{matrix}, {size}, &{lead}) {way}", matrix)
