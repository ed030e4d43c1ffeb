"""CUDA as a dialect of kernels: all elementary functions, and its own words for infinity and NaN."""

from synk.compile.native.compiler import ELEMENTARY
from synk.compile.programs.elementwise.dialect import PLAIN, SLOWER, Dialect

FUSION = "cuda_kernels"  # the tag of the rewrites that join elementwise Ops into kernels in CUDA

CUDA = Dialect(
    "CUDA",
    PLAIN | ELEMENTARY | SLOWER,
    {
        "float32": ("__int_as_float(0x7f800000)", "__int_as_float(0x7fc00000)"),
        "float64": (
            "__longlong_as_double(0x7ff0000000000000LL)",
            "__longlong_as_double(0x7ff8000000000000LL)",
        ),
    },
)
