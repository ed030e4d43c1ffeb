"""C texts of products: sums of products of elements, by BLAS, and convolutions.

A vector is a matrix with an axis of length 1. A large product of matrices is a line of Python's, but not in
the step of a loop.
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
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import type_of
from synk.compile.regions.views import View
from synk.compile.regions.walks import fill, run, whole

# Products of numbers, up to which a product of matrices takes less time than its call in Python.
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
    scratch, view = product(region, matrix, x, out.type()), region.view(y)
    region.demand_same(view.shape, scratch.shape)
    target = region.new(out, scratch.shape)
    scaled = [scratch, view, *(_number(region, value, out) for value in (alpha, beta))]
    run(region, _body("x3 == 0 ? x2 * x0 : x3 * x1 + x2 * x0", scaled, target), [*scaled, target])


def _body(text: str, read: Sequence[View], target: View) -> Body:
    """Return the body that computes an element of a view from those of others, or from numbers."""
    inputs = tuple(Operand(one.dtype, (not one.ndim,) * target.ndim) for one in read)
    return Body(inputs, (whole(target),), (), (text,), frozenset())


@c_text.register(Ger)
def ger(op, node: Apply, region: RegionWriter) -> None:
    """Compute ``A + alpha * outer(x, y)``."""
    matrix, alpha, x, y = node.inputs
    (out,) = node.outputs
    a, left, right = region.view(matrix), region.view(x), region.view(y)
    region.demand_same(a.shape, left.shape + right.shape)
    target = region.new(out, a.shape)
    column = region.let_view(a.dtype, left.at(), a.shape, [*left.strides, "0"])
    row = region.let_view(a.dtype, right.at(), a.shape, ["0", *right.strides])
    read = [a, column, row, _number(region, alpha, out)]
    run(region, _body("x0 + x3 * x1 * x2", read, target), [*read, target])


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
    (n,), (k,) = left.shape, right.shape
    region.demand(f"{n} && {k}")  # of nothing there is no convolution
    target = region.new(out, [f"{full} ? {n} + {k} - 1 : {n} < {k} ? {k} - {n} + 1 : {n} - {k} + 1"])
    fill(region, target)
    text = CONVOLUTION.substitute(kind=target.kind)
    region.line(f"{region.function(text)}(&{left}, &{right}, {full}, &{target});")


def _number(region: RegionWriter, value: Variable, out: Variable) -> View:
    """Return the view of a number in the dtype of ``out``."""
    return region.number_view(out.type.dtype, region.let(type_of(out), region.number(value)))


def product(region: RegionWriter, left: Variable, right: Variable, out: Variable) -> View:
    """Add a product, ``out``, and return its view."""
    dtype = out.type.dtype
    n_left, n_right = left.type.ndim, right.type.ndim
    if left.type.dtype != dtype or right.type.dtype != dtype or not is_float(dtype):
        raise NoText("a product of several dtypes")
    if not n_left or not n_right or n_left > 2 or n_right > 2:
        raise NoText("a product of something else than vectors and matrices")
    if n_left == n_right == 2 and not region.in_block:
        sizes = [*left.type.shape, right.type.shape[1]]
        if None in sizes or prod(sizes) > FEW:
            raise NoText("a product for BLAS")
    a, b = region.view(left), region.view(right)
    region.demand(f"{a.shape[-1]} == {b.shape[0]}")
    lengths = a.shape[:-1] + b.shape[1:]
    factors = [as_blas_reads(region, one) for one in (_matrix(region, a, 0), _matrix(region, b, 1))]
    if lengths:
        target = region.new(out, lengths)
    else:
        region.bind(out, region.let_later(TYPES[dtype]))
        target = region.number_view(dtype, region.number(out))
    place = _matrix(region, _matrix(region, target, 0) if n_left == 1 else target, 1)
    region.declarations[TABLE] = None
    region.line(f"multiply_{TYPES[dtype]}(routines, &{factors[0]}, &{factors[1]}, &{place});")
    return target


def _matrix(region: RegionWriter, view: View, axis: int) -> View:
    """Return a view with two axes: of a vector with another one of length 1."""
    if view.ndim == 2:
        return view
    shape, strides = view.shape, view.strides
    shape.insert(axis, "1")
    strides.insert(axis, "0")
    return region.let_view(view.dtype, view.at(), shape, strides)


def as_blas_reads(region: RegionWriter, matrix: View, way: str = "") -> View:
    """Return a matrix if BLAS reads it as it lies, either way or by rows (``"== 'N'"``), or else a copy."""
    lead, size = region.let_later("int"), np.dtype(matrix.dtype).itemsize
    return region.copied_unless(f"lies(&{matrix}, {size}, &{lead}) {way}", matrix)
