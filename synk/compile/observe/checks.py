"""Check the results of an implementation: pure functions that return what is wrong, in words.

Each function yields complaints, nothing where all is well. The contract of entries, which they check, stands
in ``dispatch/__init__.py``.
"""

import pickle
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm, Gemv
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.type import TensorType

from synk.compile.programs.text.program import describe

# Relative and absolute error of arrays that a program keeps in 16 bits: twice that of rounding.
ROUNDED = {"float16": (2.0**-10, 2.0**-24), "bfloat16": (2.0**-7, 0.0)}

DISCRETE = {*"biu"}  # kinds of dtypes that wrap, where others round
SUMMING = (CAReduce, Dot, Dot22, Dot22Scalar, BatchedDot, Gemm, Gemv)


def wrong_type(node: Apply, results: Sequence[Any], stored: Sequence[str]) -> Iterator[str]:
    """Check that outputs have the number, dtypes, numbers of axes and static shapes that the node declares.

    ``stored`` gives the dtype of each output where a program keeps some in 16 bits.
    """
    if len(results) != len(node.outputs):
        yield f"returned {len(results)} values, the node declares {len(node.outputs)}"
        return
    for position, (variable, value) in enumerate(zip(node.outputs, results, strict=True)):
        kind = variable.type
        if not isinstance(kind, TensorType):
            continue
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            yield f"output {position} is a {type(value).__name__}, not an array"
        elif value.dtype != (stored[position] if stored else kind.dtype):
            wanted = (
                f"the program keeps it in {stored[position]}" if stored else f"the node declares {kind.dtype}"
            )
            yield f"output {position} has dtype {value.dtype}, {wanted}"
        elif not _fits(value.shape, kind.shape):
            yield f"output {position} has shape {value.shape}, the node declares {kind.shape}"


def wrong_sharing(
    node: Apply, inputs: Sequence[Any], results: Sequence[Any], out: Sequence[Any], xp: Any
) -> Iterator[str]:
    """Check that outputs share memory with ``out`` alone, or as ``view_map`` and ``destroy_map`` say."""
    for position, result in enumerate(results):
        allowed = [*out, *(inputs[at] for at in sources(node, position))]
        for at, value in enumerate(inputs):
            if share(result, value, xp) and not any(share(value, other, xp) for other in allowed):
                yield f"output {position} shares memory with input {at}; no view_map or destroy_map says so"
        for before in range(position):
            both = [(a, inputs[b]) for a in allowed for b in sources(node, before)]
            if share(result, results[before], xp) and not any(share(a, b, xp) for a, b in both):
                yield f"outputs {before} and {position} share memory"


def wrong_writing(
    node: Apply, inputs: Sequence[Any], before: Sequence[Any], out: Sequence[Any], xp: Any
) -> Iterator[str]:
    """Check that inputs have the values ``before``, but for ``out`` and those in ``destroy_map``."""
    destroyed = [*out, *(inputs[at] for at in chain.from_iterable(node.op.destroy_map.values()))]
    for at, (value, old) in enumerate(zip(inputs, before, strict=True)):
        if not any(share(value, other, xp) for other in destroyed) and not same(value, old):
            yield f"input {at} was written to; destroy_map does not say so"


def new_numbers(inputs: Sequence[Any], results: Sequence[Any], what: str) -> Iterator[str]:
    """Complain of outputs with NaN (``what="nan"``) or infinities (``"inf"``) if no input has any."""
    found = np.isnan if what == "nan" else np.isinf
    if any(found(value).any() for value in map(widened, inputs) if _inexact(value)):
        return
    for position, value in enumerate(map(widened, results)):
        count = int(found(value).sum()) if _inexact(value) else 0
        if count:
            yield f"{count} of {value.size} values of output {position} are {what}, none of any input is"


def wrong_values(
    node: Apply, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any], between: float = 0.0
) -> Iterator[str]:
    """Compare outputs with the results ``expected``, those of the Op's own implementation.

    ``between`` is the largest magnitude among intermediate results; rounding errors are in proportion to it.
    """
    for position, (kept, right) in enumerate(zip(results, expected, strict=True)):
        result, right = widened(kept), on_host(right)
        if not isinstance(right, np.ndarray):
            if isinstance(right, np.random.Generator) and not same(result, right):
                yield f"output {position} is a generator in another state than that of perform"
        elif result.shape != right.shape:
            yield f"output {position} is {describe(result)}, that of perform {describe(right)}"
        elif {result.dtype.kind, right.dtype.kind} & DISCRETE and result.dtype != right.dtype:
            yield f"output {position} has dtype {result.dtype}, that of perform {right.dtype}"
        else:
            rounded = "" if kept.dtype == right.dtype else str(kept.dtype)
            coarse, tiny = ROUNDED.get(rounded, (0.0, 0.0))
            allowance = max(_allowance(node, inputs, right, between), tiny)
            yield from _different(position, result, right, allowance, coarse)


def sources(node: Apply, output: int) -> list[int]:
    """Return the positions of the inputs that an output may share memory with."""
    return [*node.op.view_map.get(output, ()), *node.op.destroy_map.get(output, ())]


def share(one: Any, other: Any, xp: Any) -> bool:
    """Tell whether two values share memory, or are the same generator."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.shares_memory(one, other)
    if isinstance(one, xp.ndarray) and isinstance(other, xp.ndarray):
        return bool(xp.may_share_memory(one, other))
    return one is other and isinstance(one, np.random.Generator)


def same(one: Any, other: Any) -> bool:
    """Tell whether two values, arrays or generators, are equal bit by bit; other values count as equal."""
    if isinstance(one, np.random.Generator):
        states = [pickle.dumps(value.bit_generator.state) for value in (one, other)]
        return states[0] == states[1]
    one, other = on_host(one), on_host(other)
    return not isinstance(one, np.ndarray) or one.tobytes() == other.tobytes()


def on_host(value: Any) -> Any:
    """Return an array, copied if it is on a device, as a NumPy array; return other values as they are."""
    if hasattr(value, "__cuda_array_interface__"):
        return value.get()
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def widened(value: Any) -> Any:
    """Return an array as a NumPy array, and 16-bit floats as float32; return other values as they are."""
    value = on_host(value)
    return value.astype("float32") if str(getattr(value, "dtype", "")) in ROUNDED else value


def _different(position: int, result: Any, right: Any, allowance: float, coarse: float) -> Iterator[str]:
    rtol = max(_precision(right), coarse) if _inexact(right) else 0.0
    close = np.isclose(result, right, rtol=rtol, atol=allowance, equal_nan=True) if rtol else result == right
    if not np.all(close):
        at = tuple(int(axis[0]) for axis in np.nonzero(~np.atleast_1d(close)))[: right.ndim]
        yield (
            f"{int(np.sum(~close))} of {right.size} values of output {position} are wrong: "
            f"the one at {at} is {result[at]}, that of perform {right[at]}"
        )


def _allowance(node: Apply, inputs: Sequence[Any], right: Any, between: float) -> float:
    """Return the absolute error that is allowed: more for sums, in which large numbers may cancel."""
    if not _inexact(right):
        return 0.0
    counted = [right, *map(widened, inputs)] if isinstance(node.op, SUMMING) else [right]
    largest = max(between, *map(largest_of, counted))
    return _precision(right) * largest * (1e-3 if isinstance(node.op, Elemwise) else 1)


def largest_of(value: Any) -> float:
    """Return the largest finite magnitude of an array of floats; 0 for other values."""
    return float(np.abs(value[np.isfinite(value)]).max(initial=0)) if _inexact(value) else 0.0


def _precision(value: Any) -> float:
    """Return the relative error that keeps half of a dtype's digits."""
    return float(np.sqrt(np.finfo(value.dtype).eps))


def _inexact(value: Any) -> bool:
    return hasattr(value, "dtype") and value.dtype.kind in "fc"


def _fits(shape: Sequence[int], static: Sequence[int | None]) -> bool:
    return len(shape) == len(static) and all(
        length in (None, n) for n, length in zip(shape, static, strict=True)
    )
