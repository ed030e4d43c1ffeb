"""Entries for scalar Ops as functions of whole arrays.

Most scalar Ops name their NumPy or SciPy ufunc themselves (``nfunc_spec``); functions for the rest are here.
A ufunc that returns the declared dtype is used as it is. One that does not is told to compute in that dtype
(``exp`` of int8 is float16 in NumPy, float32 in PyTensor); if it cannot, its result is converted (SciPy has
nothing in float16). For dtypes that it does not take at all, the Op's own implementation runs on the host.
"""

from contextlib import suppress
from functools import partial
from importlib import import_module
from types import ModuleType

import numpy as np
from pytensor.scalar import basic, math
from pytensor.tensor.math import MulWithoutZeros

from synk.compile.array_modules import array_module
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify, array_scalar, takes_out


@array_funcify.register(basic.ScalarOp)
def scalar_node(op, node, xp):
    """Apply a scalar Op to scalars, which are on the host."""
    function = array_scalar(op, node, np)
    if function is None:
        return HostCall(node, xp)
    kinds = [variable.type.dtype for variable in node.inputs]

    def compute(*inputs):
        results = function(*[np.asarray(x, kind) for x, kind in zip(inputs, kinds, strict=True)])
        return results[()] if len(node.outputs) == 1 else tuple([result[()] for result in results])

    return compute


@array_scalar.register(basic.ScalarOp)
def named_ufunc(scalar_op, node, xp):
    """Return the ufunc that the scalar Op names."""
    name, n_inputs, _ = getattr(scalar_op, "nfunc_spec", None) or ("", 0, 0)
    if n_inputs != len(node.inputs):
        return None
    return _typed(name, node, xp)


@array_scalar.register(basic.Add)
@array_scalar.register(basic.Mul)
def variadic(scalar_op, node, xp):
    """Return a sum or product of any number of terms."""
    name = scalar_op.nfunc_spec[0]
    if len(node.inputs) == 2:
        return _typed(name, node, xp)
    ufunc = partial(getattr(xp, name), dtype=node.outputs[0].type.dtype)
    return _fold(ufunc, node) if len(node.inputs) > 2 else lambda x: x.copy()


def _fold(ufunc, node):
    """Return a function that combines three or more inputs by a ufunc for two, one after another.

    Once the running result has its full shape, the next ones are written over it.
    """
    static = [variable.type.broadcastable for variable in node.inputs]
    full = [_is_full(static[:k], static) for k in range(2, len(static))]
    scalars = node.outputs[0].type.ndim == 0

    def fold(*inputs, out=None):
        if out is not None:
            return fold_into(out, inputs)
        first, second, *rest = inputs
        total = ufunc(first, second)
        for term, reuse in zip(rest, full, strict=True):
            total = ufunc(total, term, out=total if reuse and not scalars else None)
        return total

    def fold_into(out, inputs):
        places = [position for position, value in enumerate(inputs) if value is out]
        if len(places) > 1:
            out[...] = fold(*inputs)
            return out
        # The array to overwrite comes first: written to earlier, it would be lost before it is read.
        place = places[0] if places else 0
        others = [*inputs[:place], *inputs[place + 1 :]]
        ufunc(inputs[place], others[0], out=out)
        for term in others[1:]:
            ufunc(out, term, out=out)
        return out

    return takes_out(fold)


def _is_full(part, whole) -> bool:
    """Tell whether some broadcast patterns, ``part``, lead to the same shape as all, ``whole``."""
    return [all(axis) for axis in zip(*part, strict=True)] == [all(axis) for axis in zip(*whole, strict=True)]


@array_scalar.register(basic.Cast)
def cast(scalar_op, node, xp):
    """Return the conversion to another dtype, which is always a copy."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    return lambda x: x.astype(dtype)


@array_scalar.register(basic.Second)
def second(scalar_op, node, xp):
    """Return ``y`` broadcast to the common shape with ``x``, whose values are not used."""

    def fill(x, y):
        result = xp.empty(np.broadcast_shapes(x.shape, y.shape), y.dtype)
        result[...] = y
        return result

    return fill


@array_scalar.register(math.Softplus)
def softplus(scalar_op, node, xp):
    """Return ``log(1 + exp(x))``, without overflow."""
    zero = np.zeros((), node.outputs[0].type.dtype)[()]
    # Without the dtype, int8 would be computed in float16.
    return partial(_softplus, xp.logaddexp, zero) if zero.dtype.kind == "f" else None


def _softplus(logaddexp, zero, x):
    return logaddexp(x, zero, dtype=zero.dtype)


def _polygamma(xp):
    return _lookup("scipy.special.polygamma", xp)


def _away_from_zero(xp, x):
    """Round to the nearest integer, halves away from zero.

    Infinity stays, since its difference to the whole part is NaN, which is not half or more.
    """
    whole = xp.trunc(x)
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.copysign(1, x), whole)


COPIES = {  # none is a view
    basic.Identity: lambda x: x.copy(),
    basic.Real: lambda x: x.real.copy(),
    basic.Imag: lambda x: x.imag.copy(),
}
FORMULAS = {
    basic.Switch: lambda xp: xp.where,
    basic.Clip: lambda xp: lambda x, low, high: xp.minimum(xp.maximum(x, low), high),
    basic.Complex: lambda xp: lambda x, y: x + 1j * y,
    basic.RoundHalfAwayFromZero: lambda xp: partial(_away_from_zero, xp),
    # log(1 - exp(x)) for negative x: the form that keeps precision on each side of -log 2.
    math.Log1mexp: lambda xp: lambda x: xp.where(x < np.log(0.5), xp.log1p(-xp.exp(x)), xp.log(-xp.expm1(x))),
    # The order may be asked for methods of arrays, which numbers of Python lack.
    math.TriGamma: lambda xp: partial(_polygamma(xp), np.int64(1)),
    math.PolyGamma: _polygamma,
    MulWithoutZeros: lambda xp: lambda x, y: xp.where(x == 0, y, xp.where(y == 0, x, x * y)),
}

array_scalar.register(basic.RoundHalfToEven, lambda scalar_op, node, xp: _typed("rint", node, xp))

for op_class, copied in COPIES.items():
    array_scalar.register(op_class, lambda scalar_op, node, xp, copied=copied: copied)

for op_class, formula in FORMULAS.items():
    array_scalar.register(op_class, lambda scalar_op, node, xp, formula=formula: _declared(formula(xp), node))


def _declared(function, node):
    """Return a function whose results, which are new arrays, are converted to the dtype of the node."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    return lambda *inputs: function(*inputs).astype(dtype, copy=False)


def _typed(name: str, node, xp: ModuleType):
    """Return the ufunc ``name`` in a form that returns the node's dtype, or None if there is none."""
    ufunc = _lookup(name, xp)
    reference = ufunc if xp is np else _lookup(name, np)
    if ufunc is None or not isinstance(reference, np.ufunc):
        return None
    dtype, given = np.dtype(node.outputs[0].type.dtype), [variable.type.dtype for variable in node.inputs]
    keywords = _fitting(reference, given, dtype)
    if keywords is None or not _takes(ufunc, given):
        return None
    if keywords.get("dtype", dtype) == dtype:
        return partial(ufunc, **keywords) if keywords else ufunc
    return lambda *inputs: ufunc(*inputs, **keywords).astype(dtype)


def _fitting(ufunc: np.ufunc, dtypes, dtype: np.dtype) -> dict | None:
    """Return keywords with which ``ufunc`` gives ``dtype``, or one to convert from; None if neither."""
    ones = [np.ones((), given) for given in dtypes]
    results = {}
    with np.errstate(all="ignore"):
        for wanted in (None, dtype):
            keywords = {} if wanted is None else {"dtype": wanted}
            with suppress(TypeError):
                results[wanted] = ufunc(*ones, **keywords).dtype
                if results[wanted] == dtype:
                    return keywords
    found = results.get(None)
    return {"dtype": found} if found is not None and np.can_cast(found, dtype, "same_kind") else None


def _takes(ufunc, dtypes) -> bool:
    """Return False if one of ``dtypes`` is complex and the ufunc takes none that is."""
    loops = getattr(ufunc, "types", ())
    return not (loops and any(np.dtype(dtype).kind == "c" for dtype in dtypes)) or any(
        set("FD") & set(loop) for loop in loops
    )


def _lookup(name: str, xp: ModuleType):
    """Find a function by name: in ``xp``, or in what it has for SciPy if the name is SciPy's."""
    module, _, function = name.rpartition(".")
    if not module:
        return getattr(xp, function, None)
    of_scipy = module.startswith("scipy.")
    library = array_module(xp).scipy_module(module[6:]) if of_scipy else import_module(module)
    return getattr(library, function, None)
