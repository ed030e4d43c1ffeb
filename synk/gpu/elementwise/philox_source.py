"""Random numbers from a counter, written as CUDA: an element's position determines its number.

Philox-4x32-10 makes four words of 32 bits out of 128 bits of counter and 64 of key. A draw has a key and a
stream of its own, 64 bits each, and element i takes its words from block ``i // PER``, where PER elements
share a block:

    counter = (block, stream), key -> 4 words -> PER elements

so the numbers do not depend on the number of threads or their order. All kernels have the same form of
arguments; each parameter of the distribution is a value, or an array with a step of 0 or 1 from element to
element:

    NAME(n, key, stream, words, value_0, array_0, step_0, ..., out)

Key and stream are the arguments of these names if ``words`` is null; otherwise the two words that it points
to, so that a launch which is recorded in a CUDA graph can get others each time.

This is text only: `synk.gpu.dispatch.device_random` launches it. Reference: Salmon et al. (2011),
doi:10.1145/2063384.2063405.
"""

from string import Template
from typing import NamedTuple

from synk.compile.programs.elementwise.dialect import TYPES

PHILOX = """\
#define DEVICE static __device__ __forceinline__
typedef unsigned int word;
typedef unsigned long long word64;

DEVICE void philox(word64 block, word64 stream, word64 key, word *x)
{
    word c0 = (word)block, c1 = (word)(block >> 32), c2 = (word)stream, c3 = (word)(stream >> 32);
    word k0 = (word)key, k1 = (word)(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const word64 a = (word64)0xD2511F53U * c0, b = (word64)0xCD9E8D57U * c2;
        c0 = (word)(b >> 32) ^ c1 ^ k0;
        c2 = (word)(a >> 32) ^ c3 ^ k1;
        c1 = (word)b;
        c3 = (word)a;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    x[0] = c0;
    x[1] = c1;
    x[2] = c2;
    x[3] = c3;
}
"""

KERNEL = Template("""\
$philox
$element
extern "C" __global__ void $name(long long n, word64 key, word64 stream, $parameters, $out *out)
{
    if (words) {
        key = words[0];
        stream = words[1];
    }
    for (long long block = blockIdx.x * (long long)blockDim.x + threadIdx.x; block * $per < n;
         block += (long long)blockDim.x * gridDim.x) {
        word x[4];
        philox((word64)block, stream, key, x);
$draw
        for (int j = 0; j < $per; ++j) {
            const long long i = block * $per + j;
            if (i >= n)
                break;
$read
            out[i] = $value;
        }
    }
}
""")

# Uniform numbers of 32 or 64 bits: in [0, 1), in (0, 1], and in (0, 1).
FLOAT = """\
DEVICE float below_one(const word *x, int j) { return (x[j] >> 8) * 0x1p-24f; }
DEVICE float above_zero(const word *x, int j) { return x[j] * 0x1p-32f + 0x1p-33f; }
DEVICE float between(const word *x, int j) { return ((x[j] >> 9) + 0.5f) * 0x1p-23f; }
"""
DOUBLE = """\
DEVICE word64 pair(const word *x, int j) { return (word64)x[2 * j + 1] << 32 | x[2 * j]; }
DEVICE double below_one(const word *x, int j) { return (pair(x, j) >> 11) * 0x1p-53; }
DEVICE double above_zero(const word *x, int j) { return ((pair(x, j) >> 11) + 1) * 0x1p-53; }
DEVICE double between(const word *x, int j) { return ((pair(x, j) >> 12) + 0.5) * 0x1p-52; }
"""

# high: the upper half of a 128-bit product. below: the upper part of 128 random bits times a range, where a
# range of 0 stands for 2**64.
INTEGER = """\
DEVICE word64 high(word64 a, word64 b)
{
    const word64 a0 = (word)a, a1 = a >> 32, b0 = (word)b, b1 = b >> 32;
    const word64 middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (word)middle;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}
DEVICE word64 below(word64 range, const word *x)
{
    const word64 a = (word64)x[1] << 32 | x[0], b = (word64)x[3] << 32 | x[2];
    if (!range)
        return a;
    const word64 rest = a * range;
    return high(a, range) + (rest + high(b, range) < rest);
}
"""

# 32 random bits are compared with the first 32 bits of p. If they are equal, 53 more decide, from a block of
# the counter that no element uses otherwise.
BERNOULLI = """\
DEVICE int decide(double p, word bits, word64 element, word64 stream, word64 key)
{
    const double scaled = p > 0 ? p * 0x1p32 : 0;
    const word first = scaled < 0x1p32 - 1 ? (word)scaled : 0xFFFFFFFFU;
    if (bits != first)
        return bits < first;
    word x[4];
    philox(element | 0x8000000000000000ULL, stream, key, x);
    return ((((word64)x[1] << 32) | x[0]) >> 11) * 0x1p-53 < scaled - first;
}
"""

# Box and Muller's transform: two normal numbers from two uniform ones.
NORMAL = """\
        $real z[$per];
        for (int j = 0; j < $per; j += 2) {
            const $real radius = sqrt$f(-2 * log$f(above_zero(x, j)));
            const $real angle = ($real)6.283185307179586 * below_one(x, j + 1);
            z[j] = radius * cos$f(angle);
            z[j + 1] = radius * sin$f(angle);
        }"""


class Distribution(NamedTuple):
    """A distribution of real numbers: its number of parameters, and CUDA text that computes an element."""

    parameters: int
    value: str
    draw: str = ""


REAL = {
    "uniform": Distribution(2, "(p1 - p0) * below_one(x, j) + p0"),
    "normal": Distribution(2, "p1 * z[j] + p0", NORMAL),
    "exponential": Distribution(1, "p0 * -log$f(above_zero(x, j))"),
    "gumbel": Distribution(2, "p1 * -log$f(-log$f(between(x, j))) + p0"),
}


def kernel_name(kind: str, dtype: str) -> str:
    """Return the name of the CUDA function for a distribution and dtype."""
    return f"synk_{kind}_{dtype}"


def parameter_dtype(kind: str, dtype: str) -> str:
    """Return the dtype of the distribution's parameters as arguments of the kernel."""
    return {"integers": "uint64", "bernoulli": "float64"}.get(kind, dtype)


def per_block(kind: str, dtype: str) -> int:
    """Return how many elements one block of the counter, four words of 32 bits, suffices for."""
    return 1 if kind == "integers" else 2 if dtype == "float64" and kind in REAL else 4


def source(kind: str, dtype: str) -> str:
    """Return the CUDA text of a kernel.

    Parameters
    ----------
    kind : str
        ``uniform`` (low, high), ``normal`` (mean, deviation), ``exponential`` (scale), ``gumbel`` (place,
        scale), ``integers`` (lowest, how many) or ``bernoulli`` (p).
    dtype : str
        Of the results: float32 or float64; any integer or bool for the last two kinds.
    """
    if kind == "integers":
        n_parameters, element, draw, value = 2, INTEGER, "", f"({TYPES[dtype]})(p0 + below(p1, x))"
    elif kind == "bernoulli":
        n_parameters, element, draw = 1, BERNOULLI, ""
        value = "decide(p0, x[j], (word64)i, stream, key)"
    else:
        n_parameters, value, draw = REAL[kind]
        element = DOUBLE if dtype == "float64" else FLOAT
    kind_of_parameters = TYPES[parameter_dtype(kind, dtype)]
    numbers = range(n_parameters)
    text = KERNEL.safe_substitute(
        philox=PHILOX,
        element=element,
        parameters="const word64 *words, "
        + ", ".join(
            f"{kind_of_parameters} value_{k}, const {kind_of_parameters} *array_{k}, long long step_{k}"
            for k in numbers
        ),
        draw=draw,
        read="\n".join(
            f"            const {kind_of_parameters} p{k} = array_{k} ? array_{k}[i * step_{k}] : value_{k};"
            for k in numbers
        ),
        value=value,
    )
    return Template(text).substitute(
        name=kernel_name(kind, dtype),
        out=TYPES[dtype],
        per=per_block(kind, dtype),
        real=TYPES[dtype],
        f="f" if dtype == "float32" else "",
    )
