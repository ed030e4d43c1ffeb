"""The provider of cuDNN: where a convolution of CuPy's arrays, or a gradient of one, becomes a plan of its.

    CuDnn(cupy, instead).forward(convolution, relu, has_bias) -> f(x, w[, bias], out=None)

An implementation keeps a plan for each set of shapes that it has met. Where cuDNN has nothing (a geometry, a
dtype, arrays of different dtypes, arrays without elements) the same implementation of another provider
computes. Has run on a stand-in for cuDNN only, and on no GPU yet.
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
ALIGNMENT = 16  # bytes: what cuDNN expects of every address
TF32 = "CUPY_TF32"  # by which CuPy computes products, and `synk.gpu.device.cuda_device` sets it


class CuDnn(Provider):
    """Convolutions by cuDNN, of CuPy's arrays.

    The provider ``instead`` has the same three methods, and computes what cuDNN has nothing for.
    """

    by_dtype = True  # arrays of 16 bits are taken, and given, as they are

    def __init__(self, xp: ModuleType, instead: Any):
        super().__init__(xp)
        self._instead = instead

    def forward(self, convolution: Convolution, relu: bool = False, has_bias: bool = False) -> CudnnForward:
        """Return ``f(x, w[, bias], out=None)``: the convolution, plus a bias per channel, then max(0, .)."""
        instead = self._instead.forward(convolution, relu, has_bias)
        return CudnnForward(self._xp, partial(descriptor.forward, convolution), in_float32(instead), relu)

    def input_gradient(self, convolution: Convolution) -> CudnnGradient:
        """Return ``f(gy, w, height, width, out=None)``: the gradient for images of height x width."""
        instead = self._instead.input_gradient(convolution)
        return CudnnGradient(self._xp, partial(descriptor.input_gradient, convolution), in_float32(instead))

    def weight_gradient(self, convolution: Convolution) -> CudnnGradient:
        """Return ``f(x, gy, kh, kw, out=None)``: the gradient for weights of kh x kw."""
        instead = self._instead.weight_gradient(convolution)
        return CudnnGradient(self._xp, partial(descriptor.weight_gradient, convolution), in_float32(instead))


class CudnnConvolution:
    """Keep plans by shapes, and arrange arrays as cuDNN takes them.

    ``state`` takes shapes and lengths, dtype and more, and returns the descriptor; ``instead`` computes where
    there is no plan.
    """

    takes_out = True  # the mark of synk.compile.tables

    def __init__(self, xp: Any, state: Callable[..., Descriptor], instead: Callable[..., Any]):
        self._xp, self._state, self._instead = xp, state, instead
        self._plans: dict[tuple, CudnnPlan | None] = {}

    def plan(self, arrays: tuple[Any, ...], *lengths: int, **rest: Any) -> CudnnPlan | None:
        """Return the plan for arrays of these shapes, or None.

        The shapes of the first two arrays, ``lengths`` and ``rest`` make the descriptor.
        """
        dtype, tf32, gpu = arrays[0].dtype, tf32_is_allowed(), self._xp.cuda.get_device_id()
        key = tuple([(array.shape, array.dtype) for array in arrays]), lengths, tf32, gpu
        try:
            return self._plans[key]
        except KeyError:
            pass
        stated = self._state(arrays[0].shape, arrays[1].shape, *lengths, dtype=dtype.name, tf32=tf32, **rest)
        is_taken = dtype.name in DTYPES and all(array.dtype == dtype for array in arrays)
        plan = plan_or_none(self._xp, stated) if is_taken else None
        if len(self._plans) >= MOST_SHAPES:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = plan
        return plan

    def execute(self, plan: CudnnPlan, arrays: tuple[Any, ...], out: Any) -> Any:
        """Return the result of a plan, a new array or ``out``."""
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
        """Return the array, or a copy that lies as cuDNN expects it."""
        if lies_well(array):
            return array
        copy = self._xp.empty(array.shape, array.dtype)
        copy[...] = array
        return copy


class CudnnForward(CudnnConvolution):
    """``f(x, w[, bias], out=None)``."""

    def __init__(self, xp: Any, state: Callable[..., Descriptor], instead: Callable[..., Any], relu: bool):
        super().__init__(xp, state, instead)
        self._relu = relu

    def __call__(self, x: Any, w: Any, *bias: Any, out: Any = None) -> Any:
        """Return the result, a new array or ``out``."""
        if bias and bias[0].shape != w.shape[:1]:
            raise ValueError(f"bias has shape {bias[0].shape}; give it {w.shape[:1]}, one per channel of w")
        arrays = (x, w, *bias)
        plan = self.plan(arrays, has_bias=bool(bias))
        if plan is None:
            return self._instead(*arrays, out=out)
        y = self.execute(plan, arrays, out)
        return self._xp.maximum(y, 0, out=y) if self._relu else y


class CudnnGradient(CudnnConvolution):
    """``f(gy, w, height, width, out=None)`` or ``f(x, gy, kh, kw, out=None)``."""

    def __call__(self, left: Any, right: Any, height: Any, width: Any, out: Any = None) -> Any:
        """Return the gradient for what is of height x width, a new array or ``out``."""
        size = int(height), int(width)
        plan = self.plan((left, right), *size)
        if plan is None:
            return self._instead(left, right, *size, out=out)
        return self.execute(plan, (left, right), out)


def in_float32(instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return an implementation that computes arrays of 16 bits in float32, and rounds the result.

    CuPy adds up products of batches of bfloat16 in bfloat16.
    """

    def run(*arrays, out=None):
        dtype = arrays[0].dtype
        if dtype.name not in NARROW:
            return instead(*arrays, out=out)
        result = instead(*[a.astype("float32") if getattr(a, "ndim", 0) else a for a in arrays])
        if out is None:
            return result.astype(dtype)
        out[...] = result
        return out

    return run


def lies_well(array: Any) -> bool:
    """Tell whether cuDNN can read or write an array where it is.

    A part of a flat vector may begin at any element.
    """
    return array.flags.c_contiguous and array.data.ptr % ALIGNMENT == 0


def tf32_is_allowed() -> bool:
    """Tell whether products of float32 may use TF32: the rule of CuPy's own products."""
    return os.environ.get(TF32, "0") not in ("", "0")
