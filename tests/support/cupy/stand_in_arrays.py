"""What programs do in another way on the stand-in's arrays: as on CuPy's, but without kernels and cuBLAS."""

from importlib import import_module
from importlib.util import find_spec

from synk.compile.array_modules import ARRAY_MODULES, ArrayModule


class StandInArrays(ArrayModule):
    scipy = "cupyx.scipy"
    sparse_dtypes = frozenset({"bool", "float32", "float64", "complex64", "complex128"})

    def sampler(self, op):
        # A part of synk.gpu, without which random variables are drawn on the host.
        if find_spec("synk.gpu") is None:
            return None
        return import_module("synk.gpu.dispatch.device_random").device_sampler(op, self.xp)

    def raising(self, function):
        def call(*inputs, **keywords):
            with import_module("cupyx").errstate(linalg="raise"):
                return function(*inputs, **keywords)

        return call


def register():
    ARRAY_MODULES["support.cupy.stand_in"] = StandInArrays
