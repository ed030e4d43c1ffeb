"""The provider that computes convolutions of CuPy's arrays, and their gradients, by plans of cuDNN.

    CuDnn(cupy, fallback).forward(convolution, relu, has_bias) -> f(x, w[, bias], out=None)

An implementation keeps a plan for each set of shapes that it was called with. Where cuDNN cannot compute
(because of the geometry, the dtype, arrays of different dtypes, arrays without elements), another provider's
implementation does. This has run on the tests' replacement of cuDNN only, and on no GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from synk.compile.programs.text.transfer import NARROW
from synk.gpu.kernels.cudnn import descriptor
from synk.gpu.kernels.cudnn.cudnn_plan import DTYPES, CudnnPlan
from synk.gpu.kernels.cudnn.descriptor import Descriptor
from synk.gpu.kernels.cudnn.handle import handle_of, plan_or_none
from synk.ops.kernels.provider import Provider
from synk.ops.kernels.window import Convolution

MOST_SHAPES = 64  # that one implementation remembers
ALIGNMENT = 16  # bytes, of which cuDNN expects every address to be a multiple
TF32 = "CUPY_TF32"  # switches TF32 in CuPy's products; `synk.gpu.device.cuda_device` sets it


class CuDnn(Provider):
    """Convolutions by cuDNN, of CuPy's arrays.

    The provider ``fallback`` has the same three methods; it computes the convolutions that cuDNN cannot.
    """

    by_dtype = True  # kernels take arrays of 16 bits and return such, without conversion

    def __init__(self, xp: ModuleType, fallback: Any):
        super().__init__(xp)
        self._fallback = fallback

    def forward(self, convolution: Convolution, relu: bool = False, has_bias: bool = False) -> CudnnForward:
        """Return ``f(x, w[, bias], out=None)``: the convolution plus the bias, rectified if ``relu``."""
        fallback = self._fallback.forward(convolution, relu, has_bias)
        return CudnnForward(self._xp, partial(descriptor.forward, convolution), in_float32(fallback), relu)

    def input_gradient(self, convolution: Convolution) -> CudnnGradient:
        """Return ``f(gy, w, height, width, out=None)``: the gradient for images of height x width."""
        fallback = self._fallback.input_gradient(convolution)
        return CudnnGradient(self._xp, partial(descriptor.input_gradient, convolution), in_float32(fallback))

    def weight_gradient(self, convolution: Convolution) -> CudnnGradient:
        """Return ``f(x, gy, kh, kw, out=None)``: the gradient for weights of kh x kw."""
        fallback = self._fallback.weight_gradient(convolution)
        return CudnnGradient(self._xp, partial(descriptor.weight_gradient, convolution), in_float32(fallback))


class CudnnConvolution:
    """A function of arrays that keeps one plan for each set of shapes; subclasses add how it is called.

    ``describe`` is one of the functions of `descriptor`, and returns the descriptor for a plan; ``fallback``
    is called where cuDNN has no plan.
    """

    takes_out = True  # tells synk.compile.tables that the function accepts ``out=``

    def __init__(self, xp: Any, describe: Callable[..., Descriptor], fallback: Callable[..., Any]):
        self._xp, self._describe, self._fallback = xp, describe, fallback
        self._plans: dict[tuple, CudnnPlan | None] = {}

    def plan(self, arrays: tuple[Any, ...], *lengths: int, **rest: Any) -> CudnnPlan | None:
        """Return the plan for these arrays, or None if cuDNN cannot compute them.

        The descriptor is made from the shapes of the first two arrays, ``lengths`` and ``rest``.
        """
        dtype, tf32, gpu = arrays[0].dtype, tf32_is_allowed(), self._xp.cuda.get_device_id()
        key = tuple([(array.shape, array.dtype) for array in arrays]), lengths, tf32, gpu
        try:
            return self._plans[key]
        except KeyError:
            pass
        shapes = arrays[0].shape, arrays[1].shape
        stated = self._describe(*shapes, *lengths, dtype=dtype.name, tf32=tf32, **rest)
        is_taken = dtype.name in DTYPES and all(array.dtype == dtype for array in arrays)
        plan = plan_or_none(self._xp, stated) if is_taken else None
        if len(self._plans) >= MOST_SHAPES:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = plan
        return plan

    def execute(self, plan: CudnnPlan, arrays: tuple[Any, ...], out: Any) -> Any:
        """Run a plan; return its result in a new array or in ``out``."""
        stated = plan.descriptor
        dtype = arrays[0].dtype
        fits = out is not None and out.dtype == dtype and lies_well(out)
        result = out if fits else self._xp.empty(stated.shape(stated.target), dtype)
        arrays = tuple([self._taken(array) for array in arrays])
        pointers = {uid: array.data.ptr for uid, array in zip(stated.inputs, arrays, strict=True)}
        pointers[stated.target] = result.data.ptr
        handle_of(self._xp).execute(plan, pointers)
        if out is None or fits:
            return result
        out[...] = result
        return out

    def _taken(self, array: Any) -> Any:
        """Return the array, or a copy of it if cuDNN cannot read it in place."""
        if lies_well(array):
            return array
        copy = self._xp.empty(array.shape, array.dtype)
        copy[...] = array
        return copy


class CudnnForward(CudnnConvolution):
    """``f(x, w[, bias], out=None)``."""

    def __init__(
        self, xp: Any, describe: Callable[..., Descriptor], fallback: Callable[..., Any], relu: bool
    ):
        super().__init__(xp, describe, fallback)
        self._relu = relu

    def __call__(self, x: Any, w: Any, *bias: Any, out: Any = None) -> Any:
        """Return the convolution, in a new array or in ``out``."""
        if bias and bias[0].shape != w.shape[:1]:
            raise ValueError(f"bias has shape {bias[0].shape}; give it {w.shape[:1]}, one per channel of w")
        arrays = (x, w, *bias)
        plan = self.plan(arrays, has_bias=bool(bias))
        if plan is None:
            return self._fallback(*arrays, out=out)
        y = self.execute(plan, arrays, out)
        return self._xp.maximum(y, 0, out=y) if self._relu else y


class CudnnGradient(CudnnConvolution):
    """``f(gy, w, height, width, out=None)`` or ``f(x, gy, kh, kw, out=None)``."""

    def __call__(self, left: Any, right: Any, height: Any, width: Any, out: Any = None) -> Any:
        """Return the gradient for an array of height x width, in a new array or in ``out``."""
        size = int(height), int(width)
        plan = self.plan((left, right), *size)
        if plan is None:
            return self._fallback(left, right, *size, out=out)
        return self.execute(plan, (left, right), out)


def in_float32(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Return an implementation that computes arrays of 16 bits in float32, and rounds its result.

    Without it, CuPy would sum batches of bfloat16 products in bfloat16.
    """

    def run(*arrays, out=None):
        dtype = arrays[0].dtype
        if dtype.name not in NARROW:
            return fallback(*arrays, out=out)
        result = fallback(*[a.astype("float32") if getattr(a, "ndim", 0) else a for a in arrays])
        if out is None:
            return result.astype(dtype)
        out[...] = result
        return out

    return run


def lies_well(array: Any) -> bool:
    """Return whether cuDNN can read or write the array in place: it is contiguous and aligned.

    An array may be part of a flat vector, and then begin at any element of that.
    """
    return array.flags.c_contiguous and array.data.ptr % ALIGNMENT == 0


def tf32_is_allowed() -> bool:
    """Return whether convolutions of float32 may use TF32, by the variable that CuPy's products obey."""
    return os.environ.get(TF32, "0") not in ("", "0")
