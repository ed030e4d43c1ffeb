"""Random numbers drawn on a GPU, each computed from a counter (`synk.gpu.elementwise.philox_source`).

    generator on the host --128 bits--> key, stream -> one launch -> array on the device
    or memory on the device that will hold key and stream -> the same launch

A draw of any shape takes two numbers of 64 bits from the generator on the host. So it is reproducible,
successive draws differ, and so do the draws of ranks, whose generators differ. The numbers have the same
distribution as those drawn on the host, but other values. A GPU gives the same values in every run. Uniform
numbers, integers and Bernoulli variables have the same bits on any device; the others agree up to rounding.

Parameters that are numbers on the host are checked as NumPy does; arrays on the device are not, since the
host would have to wait for them. Tested by compiling the kernels for the host; unrun on GPUs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.tensor.random.basic import (
    BernoulliRV,
    ExponentialRV,
    GumbelRV,
    IntegersRV,
    NormalRV,
    UniformRV,
)

from synk.compile.programs.elementwise.dialect import TYPES
from synk.compile.programs.text.transfer import is_on_host
from synk.gpu.elementwise.cuda_source import OPTIONS
from synk.gpu.elementwise.philox_source import kernel_name, parameter_dtype, per_block, source

KINDS = {
    UniformRV: "uniform",
    NormalRV: "normal",
    ExponentialRV: "exponential",
    GumbelRV: "gumbel",
    IntegersRV: "integers",
    BernoulliRV: "bernoulli",
}
EVERY_WORD = 2**64 - 1
THREADS, MOST_BLOCKS = 256, 4096  # of one launch; with more elements, each thread computes several


def words_of(generator: Any) -> Any:
    """Return the two words of 64 bits that a draw takes from ``generator``, which advances."""
    return generator.integers(0, EVERY_WORD, 2, "uint64", endpoint=True)


def device_sampler(op: Any, xp: Any) -> Callable | None:
    """Return ``sample(generator, size, *parameters)``, which draws on the device, or None if ``op`` cannot.

    With NumPy as ``xp`` it is None, too. ``sample`` advances the generator and returns an array of ``xp``;
    size is a tuple of int or None, parameters are arrays of ``xp``, or NumPy arrays of one element.
    """
    kind = KINDS.get(type(op))
    if kind is None or xp is np:
        return None
    dtype = np.dtype(op.dtype)
    if dtype.kind == "f" and kind not in ("integers", "bernoulli"):
        return Sampler(xp, kind, "float64" if dtype == "float64" else "float32", dtype)
    if kind in ("integers", "bernoulli") and dtype.name in TYPES:
        return Sampler(xp, kind, dtype.name, dtype)
    return None


class Sampler:
    """Draw from one distribution; the kernel computes in dtype ``computed``, and results are ``dtype``.

    ``kind`` is the name of the distribution in `philox_source.source`.
    """

    def __init__(self, xp: Any, kind: str, computed: str, dtype: Any):
        self._xp, self._kind, self._computed, self._dtype = xp, kind, computed, dtype
        self._parameter_dtype = np.dtype(parameter_dtype(kind, computed))
        self._kernel: Any = None

    def __call__(self, generator: Any, size: tuple[int, ...] | None, *parameters: Any) -> Any:
        xp = self._xp
        words = words_of(generator)
        # Words on the host are arguments of the launch; words in device memory are read when the kernel runs.
        numbers, memory = (words, None) if is_on_host(words) else (np.zeros(2, np.uint64), words)
        shape = drawn_shape(size, parameters)
        parameters = tuple(number_of(p) for p in parameters)
        check(self._kind, self._dtype, parameters)
        if self._kind == "integers":
            parameters = lowest_and_range(*parameters)
        arguments = [part for p in parameters for part in self._argument(p, shape)]
        out = xp.empty(shape, self._computed)
        if out.size:
            n_threads = -(-out.size // per_block(self._kind, self._computed))
            grid = (min(-(-n_threads // THREADS), MOST_BLOCKS),)
            self._compiled()(grid, (THREADS,), (np.int64(out.size), *numbers, memory, *arguments, out))
        return out if out.dtype == self._dtype else out.astype(self._dtype)

    def _compiled(self) -> Any:
        """Return the kernel, which the first draw compiles."""
        if self._kernel is None:
            module = self._xp.RawModule(code=source(self._kind, self._computed), options=OPTIONS)
            self._kernel = module.get_function(kernel_name(self._kind, self._computed))
        return self._kernel

    def _argument(self, parameter: Any, shape: tuple[int, ...]) -> tuple[Any, Any, np.int64]:
        """Return the kernel's three arguments for a parameter: a value, or an array and its step, 0 or 1."""
        xp, dtype = self._xp, self._parameter_dtype
        if is_on_host(parameter):
            return dtype.type(parameter), None, np.int64(0)
        if parameter.dtype != dtype:
            parameter = parameter.astype(dtype)
        if parameter.size != 1:
            parameter = xp.ascontiguousarray(xp.broadcast_to(parameter, shape))
        return dtype.type(0), parameter, np.int64(parameter.size != 1)


def drawn_shape(size: tuple[int, ...] | None, parameters: Any) -> tuple[int, ...]:
    """Return the shape of a draw: ``size`` if the parameters broadcast to it, or their common shape."""
    common = np.broadcast_shapes(*[parameter.shape for parameter in parameters])
    if size is None:
        return common
    pairs = zip(reversed(common), reversed(size), strict=False)
    if len(common) > len(size) or any(length not in (1, whole) for length, whole in pairs):
        raise ValueError(f"size {size} is too small for parameters of shape {common}")
    return size


def number_of(parameter: Any) -> Any:
    """Return a NumPy array of one element as a scalar, and an array on the device as it is."""
    return parameter.reshape(())[()] if is_on_host(parameter) else parameter


def check(kind: str, dtype: Any, parameters: Any) -> None:
    """Raise ValueError for invalid parameters on the host; arrays on the device are not checked."""
    last = parameters[-1]
    if kind == "bernoulli" and is_on_host(last) and not 0 <= last <= 1:
        raise ValueError("the probability of a Bernoulli variable must lie between 0 and 1")
    if kind in ("normal", "exponential", "gumbel") and is_on_host(last) and last < 0:
        raise ValueError(f"the scale of a distribution ({kind}) must not be negative")
    if kind == "integers":
        low, high = (int(p) if is_on_host(p) else None for p in parameters)
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if (low is not None and low < least) or (high is not None and high > most + 1):
            raise ValueError(f"integers from low={low} to high={high} are out of bounds for {dtype}")
        if low is not None and high is not None and low >= high:
            raise ValueError(f"low={low} is not below high={high}: there is no integer to draw")


def lowest_and_range(low: Any, high: Any) -> tuple[Any, Any]:
    """Return bounds as two words of 64 bits: the lowest integer, and how many there are (0 for 2**64)."""
    if is_on_host(low) and is_on_host(high):
        return word(low), word(int(high) - int(low))
    first, end = (word(x) if is_on_host(x) else x.astype("int64").view("uint64") for x in (low, high))
    return first, end - first


def word(number: Any) -> np.uint64:
    """Return an integer modulo 2**64."""
    return np.uint64(int(number) & EVERY_WORD)
