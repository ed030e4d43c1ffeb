"""Random numbers drawn on a GPU, each from a counter (`synk.gpu.elementwise.philox_source`).

    generator on the host --128 bits--> key, stream -> one launch -> array on the device
    or memory on the device, where key and stream will be -> the same launch

A draw takes two numbers of 64 bits from the generator, whatever its shape, so it is as reproducible as they
are, the next draw differs, and ranks, whose generators differ, draw apart. The numbers are of the same
distribution as the host's, and others. A GPU gives the same in every run; uniform numbers, integers and
Bernoulli variables are the same bits wherever the kernels run, others are so to rounding.

What is wrong with parameters is told as on the host where they are numbers there; arrays on the device are
not looked at, since that would wait for it. Tested by running the text on the host; unrun on GPUs.
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
THREADS, MOST_BLOCKS = 256, 4096  # of one launch; a thread goes on where more are needed


def words_of(generator: Any) -> Any:
    """Advance a generator by the two words that a draw takes."""
    return generator.integers(0, EVERY_WORD, 2, "uint64", endpoint=True)


def device_sampler(op: Any, xp: Any) -> Callable | None:
    """Return ``sample(generator, size, *parameters)`` that draws on the device, or None if it cannot.

    NumPy cannot. To sample advances the generator and returns an array of ``xp``; size is a tuple of int or
    None, parameters are arrays of ``xp``, or NumPy's of 1 element.
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
    """Draw from one distribution; the kernel writes dtype ``computed``, results are of ``dtype``.

    ``kind`` is as of `philox_source.source`.
    """

    def __init__(self, xp: Any, kind: str, computed: str, dtype: Any):
        self._xp, self._kind, self._computed, self._dtype = xp, kind, computed, dtype
        self._parameter_dtype = np.dtype(parameter_dtype(kind, computed))
        self._kernel: Any = None

    def __call__(self, generator: Any, size: tuple[int, ...] | None, *parameters: Any) -> Any:
        xp = self._xp
        words = words_of(generator)
        # Numbers travel with the launch; from memory the kernel reads what is there when it is launched.
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
        """Return the kernel, compiled when first drawn from."""
        if self._kernel is None:
            module = self._xp.RawModule(code=source(self._kind, self._computed), options=OPTIONS)
            self._kernel = module.get_function(kernel_name(self._kind, self._computed))
        return self._kernel

    def _argument(self, parameter: Any, shape: tuple[int, ...]) -> tuple[Any, Any, np.int64]:
        """Return a parameter as the kernel takes it: value, array, step."""
        xp, dtype = self._xp, self._parameter_dtype
        if is_on_host(parameter):
            return dtype.type(parameter), None, np.int64(0)
        if parameter.dtype != dtype:
            parameter = parameter.astype(dtype)
        if parameter.size != 1:
            parameter = xp.ascontiguousarray(xp.broadcast_to(parameter, shape))
        return dtype.type(0), parameter, np.int64(parameter.size != 1)


def drawn_shape(size: tuple[int, ...] | None, parameters: Any) -> tuple[int, ...]:
    """Return the shape of a draw: ``size``, which parameters must fit, or what they broadcast to."""
    common = np.broadcast_shapes(*[parameter.shape for parameter in parameters])
    if size is None:
        return common
    pairs = zip(reversed(common), reversed(size), strict=False)
    if len(common) > len(size) or any(length not in (1, whole) for length, whole in pairs):
        raise ValueError(f"size {size} is too small for parameters of shape {common}")
    return size


def number_of(parameter: Any) -> Any:
    """Return a NumPy array of one element as a number; others, which are on the device, as they are."""
    return parameter.reshape(())[()] if is_on_host(parameter) else parameter


def check(kind: str, dtype: Any, parameters: Any) -> None:
    """Refuse numbers that are no parameters; arrays on the device are not looked at."""
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
    """Return bounds as words of 64 bits: where integers start, and how many there are, 0 for all 2**64."""
    if is_on_host(low) and is_on_host(high):
        return word(low), word(int(high) - int(low))
    first, end = (word(x) if is_on_host(x) else x.astype("int64").view("uint64") for x in (low, high))
    return first, end - first


def word(number: Any) -> np.uint64:
    """Return an integer modulo 2**64."""
    return np.uint64(int(number) & EVERY_WORD)
