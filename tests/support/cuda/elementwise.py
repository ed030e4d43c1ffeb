"""Run CUDA text that needs neither barriers nor shared memory: g++ compiles it, and its threads run in turn.

RawModule(code=...).get_function("f")(grid, block, arguments)       # as CuPy's; arrays are the stand-in's
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from support.cupy import stand_in

BEFORE = """
#include <math.h>
#define __global__
#define __device__
#define __forceinline__ inline
struct Index { unsigned x, y, z; };
static Index blockIdx, threadIdx, blockDim, gridDim;
"""
AFTER = """
extern "C" void run_{name}(unsigned emulated_grid, unsigned emulated_block, {parameters})
{{
    gridDim.x = emulated_grid;
    blockDim.x = emulated_block;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
            {name}({names});
}}
"""


def available():
    """Tell whether there is g++."""
    return shutil.which("g++") is not None


class RawModule:
    """As ``cupy.RawModule``, of text."""

    def __init__(self, *, code, options=()):
        self.code = code

    def get_function(self, name):
        """Return a kernel; arguments are arrays of the stand-in, None and NumPy's scalars."""
        function = compiled(self.code)[f"run_{name}"]

        def launch(grid, block, args):
            (n_blocks,), (n_threads,) = grid, block
            stand_in.counts.launches += 1
            function(ctypes.c_uint(n_blocks), ctypes.c_uint(n_threads), *map(as_c, args))

        return launch


def as_c(value):
    """Return an argument as C takes it."""
    if value is None:
        return ctypes.c_void_p()
    if isinstance(value, stand_in.ndarray):
        return ctypes.c_void_p(value.data.ptr)
    return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())


@cache
def compiled(code):
    """Return the library of a text."""
    after = [
        AFTER.format(
            name=name, parameters=parameters, names=", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
        )
        for name, parameters in re.findall(r"__global__ void (\w+)\((.*?)\)", code)
    ]
    with tempfile.TemporaryDirectory(prefix="emulated-") as folder:
        target = Path(folder, "kernels.so")
        # Without contraction, as NVRTC is told.
        flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Werror"]
        command = ["g++", "-x", "c++", "-", *flags, "-Wno-unused-function", "-o", str(target)]
        subprocess.run(command, input="\n".join([BEFORE, code, *after]), text=True, check=True)
        return ctypes.CDLL(str(target))
