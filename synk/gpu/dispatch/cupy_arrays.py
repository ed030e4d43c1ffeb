"""Everything that programs do in another way on CuPy's arrays than on NumPy's."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from pytensor.graph.basic import Apply

from synk.compile.array_modules import ArrayModule
from synk.gpu.dispatch.device_random import device_sampler
from synk.gpu.dispatch.elemwise_kernel import fused
from synk.gpu.dispatch.products import product
from synk.gpu.elementwise.cuda_dialect import FUSION


class CupyArrays(ArrayModule):
    """CuPy: products by cuBLAS, elementwise Ops and random variables by kernels in CUDA."""

    fusion = FUSION
    scipy = "cupyx.scipy"
    sparse_dtypes = frozenset({"bool", "float32", "float64", "complex64", "complex128"})

    @property
    def product(self) -> Callable:
        return partial(product, self.xp)

    dot = matmul = product

    def elementwise(
        self,
        node: Apply,
        instead: Callable[[], Callable],
        reads: Sequence[str] = (),
        gives: Sequence[str] = (),
    ) -> Callable | None:
        return fused(node, self.xp, instead, reads, gives)

    def sampler(self, op: Any) -> Callable | None:
        return device_sampler(op, self.xp)

    def raising(self, function: Callable) -> Callable:
        """Return the function with CuPy's check for failures, without which it returns invalid numbers.

        The check waits for the device.
        """
        errstate = import_module("cupyx").errstate

        def call(*inputs, **keywords):
            with errstate(linalg="raise"):
                return function(*inputs, **keywords)

        return call
