"""Random numbers of the kernels, run on the host, against the same scheme in NumPy."""

import subprocess
import sys

import numpy as np
import pytest

from support.cuda import emulator
from support.cupy import stand_in
from synk.gpu.dispatch.device_random import Sampler
from synk.gpu.elementwise.philox_source import FLOAT, INTEGER, PHILOX

pytestmark = pytest.mark.skipif(not emulator.available(), reason="there is no g++")

# Kernels of one thread, of parts of the text.
WORDS = """
extern "C" __global__ void f(word64 block, word64 stream, word64 key, word *x)
{
    philox(block, stream, key, x);
}
"""
ENDS = """
extern "C" __global__ void f(const word *x, int i, float *y)
{
    y[0] = below_one(x, i);
    y[1] = above_zero(x, i);
    y[2] = between(x, i);
}
"""
BELOW = """
extern "C" __global__ void f(word64 range, const word *x, word64 *y)
{
    *y = below(range, x);
}
"""

KEY, STREAM = 0x0123456789ABCDEF, 0xFEDCBA9876543210
MASK = 0xFFFFFFFF


class Told:
    """A generator that gives the key and the stream of these tests."""

    def integers(self, low, high, n, dtype, endpoint):
        assert (low, high, n, dtype, endpoint) == (0, 2**64 - 1, 2, "uint64", True)
        return np.array([KEY, STREAM], dtype)


def philox(block, stream=STREAM, key=KEY):
    """Return the words of blocks, shape (n, 4), by Python's integers of any size."""
    rows = []
    for number in np.atleast_1d(block).tolist():
        c = [number & MASK, number >> 32, stream & MASK, stream >> 32]
        k = [key & MASK, key >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
            k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
        rows.append(c)
    return np.array(rows, "uint32")


def words(n, bits):
    """Return the first n random words of 32 or 64 bits."""
    blocks = philox(np.arange(-(-n * bits // 128)))
    return np.ascontiguousarray(blocks).view(f"u{bits // 8}").ravel()[:n]


def run(text, name, *arguments):
    emulator.RawModule(code=text).get_function(name)((1,), (1,), arguments)


# --- words -----------------------------------------------------------------------------------------------

# Of Random123's kat_vectors: counter, key, words.
KNOWN = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_its_known_answers(counter, key, expected):
    counter, key, expected = ([int(word, 16) for word in row.split()] for row in (counter, key, expected))
    block, stream, key = (low | high << 32 for low, high in (counter[:2], counter[2:], key))
    np.testing.assert_array_equal(philox(np.array([block], "uint64"), stream, key)[0], expected)
    out = stand_in.ndarray(np.zeros(4, "uint32"))
    run(f"{PHILOX}{WORDS}", "f", *map(np.uint64, (block, stream, key)), out)
    np.testing.assert_array_equal(out.get(), expected)


def test_ends_of_the_unit_interval():
    text = f"{PHILOX}{FLOAT}{ENDS}"
    x, y = stand_in.ndarray(np.array([0, MASK], "uint32")), stand_in.ndarray(np.zeros(3, "float32"))
    run(text, "f", x, np.int32(0), y)
    np.testing.assert_array_equal(y.get(), [0, 2.0**-33, 2.0**-24])
    run(text, "f", x, np.int32(1), y)
    np.testing.assert_array_equal(y.get(), np.float32([1 - 2.0**-24, 1, 1 - 2.0**-24]))


def test_integers_below_a_range():
    y = stand_in.ndarray(np.zeros(1, "uint64"))
    generator = np.random.default_rng(1)
    for range_ in [1, 2, 3, 2**32, 2**32 + 1, 2**63 + 12345, 2**64 - 1, 0]:
        for x in [*generator.integers(0, 2**32, (20, 4), "uint32"), np.full(4, MASK, "uint32")]:
            first, second = x.view("uint64").tolist()
            run(f"{PHILOX}{INTEGER}{BELOW}", "f", np.uint64(range_), stand_in.ndarray(x), y)
            assert y.get()[0] == (((first << 64) | second) * (range_ or 2**64)) >> 128


# --- distributions against NumPy -------------------------------------------------------------------------


def unit(n, dtype):
    """Return three forms of uniform numbers: below one, above zero, between."""
    if dtype == "float32":
        x, one = words(n, 32), np.float32
        half, ulp = (x >> 9).astype(one) + one(0.5), one(2**-23)
        return (x >> 8).astype(one) * one(2**-24), x.astype(one) * one(2**-32) + one(2**-33), half * ulp
    x = words(n, 64)
    return (x >> 11) * 2.0**-53, ((x >> 11) + 1) * 2.0**-53, ((x >> 12) + 0.5) * 2.0**-52


def box_muller(n, dtype):
    below, above, _ = unit(n + n % 2, dtype)
    radius = np.sqrt(-2 * np.log(above[::2]))
    angle = np.dtype(dtype).type(6.283185307179586) * below[1::2]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).ravel()[:n]


N = 1001  # the last block is not filled


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_numbers_are_those_of_the_scheme(device, dtype):
    below, above, between = unit(N, dtype)
    real = np.dtype(dtype).type

    def draw(kind, *parameters):
        return Sampler(device, kind, dtype, np.dtype(dtype))(Told(), (N,), *map(real, parameters)).get()

    np.testing.assert_array_equal(draw("uniform", -1, 0.7), (real(0.7) - real(-1)) * below + real(-1))
    others = {
        "normal": (draw("normal", 0, 3), 3 * box_muller(N, dtype)),
        "exponential": (draw("exponential", 3), -3 * np.log(above)),
        "gumbel": (draw("gumbel", 0, 3), -3 * np.log(-np.log(between))),
    }
    for result, expected in others.values():
        assert result.dtype == expected.dtype == dtype
        np.testing.assert_allclose(
            result, expected, rtol=4 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps
        )


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        *[("int8", -128, 128), ("int16", -3, 4), ("int32", 0, 1), ("int64", -(2**63), 2**63)],
        *[("int64", 5, 2**40), ("uint8", 0, 256), ("uint64", 2**63, 2**64 - 1), ("bool", 0, 2)],
    ],
)
def test_integers_are_those_of_the_scheme(device, dtype, low, high):
    bounds = [np.array(bound) for bound in (low, high)]
    result = Sampler(device, "integers", dtype, np.dtype(dtype))(Told(), (50,), *bounds)
    pairs = philox(np.arange(50)).view("uint64").tolist()
    expected = [low + ((((a << 64) | b) * (high - low)) >> 128) for a, b in pairs]
    np.testing.assert_array_equal(result.get(), np.array(expected, dtype), strict=True)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float32"])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0, 1 - 2.0**-40, 2.0**-40])
def test_bernoulli_variables_are_those_of_the_scheme(device, dtype, p):
    result = Sampler(device, "bernoulli", dtype, np.dtype(dtype))(Told(), (N,), np.array(p))
    np.testing.assert_array_equal(result.get(), (words(N, 32) < p * 2.0**32).astype(dtype), strict=True)


def test_more_bits_decide_where_the_first_of_p_are_drawn(device):
    sampler = Sampler(device, "bernoulli", "bool", np.dtype("bool"))
    for i in (0, 1, 6):
        tie = int(words(N, 32)[i])
        further = philox(np.array([i | 1 << 63], "uint64"))[0].view("uint64")[0]
        fraction = (int(further) >> 11) * 2.0**-53
        for nudge in (-(2.0**-20), 2.0**-20):
            p = (tie + fraction + nudge) * 2.0**-32
            assert sampler(Told(), (N,), np.array(p)).get()[i] == (nudge > 0)


# --- a GPU -----------------------------------------------------------------------------------------------

GPU = """
import sys
import cupy, numpy as np
from synk.gpu.dispatch.device_random import Sampler

for word in sys.argv[1:]:
    kind, dtype, *parameters = word.split(",")
    parameters = [np.array(float(p)) for p in parameters]
    sampler = Sampler(cupy, kind, dtype, np.dtype(dtype))
    print(sampler(np.random.default_rng(1), (1001,), *parameters).get().tobytes().hex())
"""
DRAWS = [
    *["uniform,float32,-1,3", "uniform,float64,-1,3", "integers,int8,-3,9", "bernoulli,bool,0.3"],
    *["normal,float32,1,2", "normal,float64,1,2", "exponential,float32,2", "gumbel,float32,1,2"],
]


@pytest.mark.gpu
def test_a_real_gpu_draws_the_same(device):
    ended = subprocess.run(
        [sys.executable, "-c", GPU, *DRAWS], capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.returncode == 0, ended.stderr
    for word, line in zip(DRAWS, ended.stdout.split(), strict=True):
        kind, dtype, *numbers = word.split(",")
        parameters = [np.array(float(number)) for number in numbers]
        expected = Sampler(device, kind, dtype, np.dtype(dtype))(np.random.default_rng(1), (N,), *parameters)
        result = np.frombuffer(bytes.fromhex(line), dtype)
        if kind in ("uniform", "integers", "bernoulli"):
            np.testing.assert_array_equal(result, expected.get())
        else:
            np.testing.assert_allclose(result, expected.get(), rtol=1e-5, atol=1e-5)
