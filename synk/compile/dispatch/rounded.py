"""Implementations of nodes that read or return arrays of 16 bits; they compute in float32.

rounded -> of matrices                 -> the array module's product, if it has one: 16 bits, sums of 32
        -> elementwise                 -> its kernel, if it has one, which converts as it reads and writes
        -> a ufunc, or a sum           -> called with dtype=float32, so that it converts as it reads
        -> views, parts and joins      -> unchanged; results are converted if the graph needs that
        -> kernels that take any dtype -> unchanged, if their results have the dtypes that are needed
        -> anything else               -> inputs converted before, results converted after
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar import basic
from pytensor.tensor.basic import Join
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.math import Dot

from synk.compile.array_modules import array_module
from synk.compile.dispatch.broadcast import length_check
from synk.compile.dispatch.reduce import deliver
from synk.compile.dispatch.shape import concatenation
from synk.compile.programs.text.transfer import NARROW
from synk.compile.tables import (
    Width,
    accepts_out,
    array_funcify,
    array_rounded,
    array_scalar,
    goes_by_dtype,
    takes_out,
    width,
)

WIDE = "float32"
PRODUCTS = (Dot, Dot22, Dot22Scalar, Gemm, BatchedDot, Blockwise)


@array_rounded.register(Op)
def rounded(op, node, implementation, reads, gives, *, xp, dtype):
    """Return an implementation whose inputs ``reads`` and outputs ``gives`` are arrays of 16 bits."""
    # A partial, so that the attribute belongs to this node: the function may serve other nodes, too.
    run = partial(_chosen(node, implementation, reads, gives, xp, dtype))
    run.stored = tuple(
        dtype if narrow else getattr(v.type, "dtype", "")
        for v, narrow in zip(node.outputs, gives, strict=True)
    )
    return run


def _chosen(node, implementation, reads, gives, xp, dtype) -> Callable:
    rule = width(node.op, node)
    if rule.keeps:
        return implementation if all(gives) else _by_dtype(implementation, rule, gives)
    if isinstance(node.op, Join):
        return concatenation(node.op, xp, dtype if gives[0] else node.outputs[0].type.dtype)
    all_narrow = all(reads[k] for k in rule.rounds or rule.requires)
    # A product of 16-bit factors is fast only if they stay so, whatever dtype its result has.
    if goes_by_dtype(node.op, node, xp) and all_narrow and (rule.rounds or all(gives[k] for k in rule.gives)):
        return _by_dtype(implementation, rule, gives)
    if xp is not np and _adds_up(node):
        return _sum(node)
    if isinstance(node.op, Elemwise):
        kinds = [[dtype if narrow and dtype in NARROW else "" for narrow in side] for side in (reads, gives)]
        instead = partial(_without_kernel, node, implementation, reads, gives, xp, dtype)
        kernel = array_module(xp).elementwise(node, instead, *kinds) if any(map(any, kinds)) else None
        return instead() if kernel is None else kernel
    return _without_kernel(node, implementation, reads, gives, xp, dtype)


def _without_kernel(node, implementation, reads, gives, xp, dtype) -> Callable:
    if isinstance(node.op, Elemwise):
        ufunc = _ufunc(node, xp)
        if ufunc is not None:
            return _told(ufunc, node, xp, dtype if gives[0] else node.outputs[0].type.dtype)
    product = array_module(xp).product
    if product is None or not isinstance(node.op, PRODUCTS):
        return _around(implementation, node, reads, gives, xp, dtype)
    if isinstance(node.op, Dot | Dot22 | BatchedDot | Blockwise):
        return takes_out(partial(product, out_dtype=dtype if gives[0] else WIDE))
    # Implementations of these Ops use only ``dot`` of the array module.
    products: Any = SimpleNamespace(__name__="products", dot=partial(product, out_dtype=WIDE))
    wide = array_funcify(node.op, node, products)
    return _around(wide, node, [False] * len(reads), gives, xp, dtype)


def _around(implementation, node, reads, gives, xp, dtype) -> Callable:
    """Return an implementation that converts 16-bit inputs to float32 first, and results to 16 bits after."""
    converted = [k for k, narrow in enumerate(reads) if narrow]
    kinds = [dtype if narrow else None for narrow in gives]
    passes_out = True not in gives and accepts_out(implementation, xp)
    single = len(kinds) == 1

    def run(*inputs, out=None):
        arrays = list(inputs)
        for k in converted:
            arrays[k] = arrays[k].astype(WIDE)
        if passes_out:
            return implementation(*arrays, out=out)
        results = implementation(*arrays)
        if single:
            return deliver(results, kinds[0], out)
        places = out or [None] * len(kinds)
        return tuple([deliver(*parts) for parts in zip(results, kinds, places, strict=True)])

    return takes_out(run)


def _by_dtype(implementation: Callable, rule: Width, gives: Sequence[bool]) -> Callable:
    """Return an implementation that takes 16-bit arrays; results become float32 where ``gives`` is false."""
    if len(gives) == 1 and not gives[0]:
        return takes_out(lambda *inputs, out=None: deliver(implementation(*inputs), WIDE, out))
    widened = [k for k in rule.gives if not gives[k]]

    def same(*inputs, out=None):
        return implementation(*inputs, out=out)

    def converted(*inputs):
        results = list(implementation(*inputs))
        for k in widened:
            results[k] = results[k].astype(WIDE)
        return tuple(results)

    if widened:
        return converted
    return same if len(gives) > 1 else takes_out(same)


def _adds_up(node: Apply) -> bool:
    """Return whether a node is a sum in float32 or float64."""
    is_sum = isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, basic.Add)
    return is_sum and node.outputs[0].type.dtype in (WIDE, "float64")


def _sum(node: Apply) -> Callable:
    """Return a sum that adds in the dtype of the result, without converting the input first."""
    axes = None if node.op.axis is None else tuple(sorted(node.op.axis))
    dtype = node.outputs[0].type.dtype
    return takes_out(lambda x, out=None: x.sum(axis=axes, dtype=dtype, out=out))


def _ufunc(node: Apply, xp: ModuleType) -> Callable | None:
    """Return the ufunc that computes an Elemwise node of result float32 or bool; None if it is no ufunc."""
    if len(node.outputs) > 1 or node.outputs[0].type.dtype not in (WIDE, "bool"):
        return None
    function = array_scalar(node.op.scalar_op, node, xp)
    inner = function.func if isinstance(function, partial) else function
    return function if type(inner).__name__ == np.ufunc.__name__ else None


def _told(ufunc: Callable, node: Apply, xp: ModuleType, dtype: str) -> Callable:
    """Return a function that calls a ufunc so that it computes in float32, for inputs of any dtype."""
    check = length_check([variable.type.shape for variable in node.inputs])
    computed = {} if dtype == "bool" else {"dtype": WIDE}

    def run(*inputs, out=None):
        if check is not None:
            check(inputs)
        if out is None:
            out = xp.empty(np.broadcast_shapes(*[x.shape for x in inputs]), dtype)
        return ufunc(*inputs, out=out, **computed)

    return takes_out(run)
