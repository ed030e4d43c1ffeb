"""The batches of an epoch, from arrays, a function of row numbers, or a generator.

    data -> feed -> Feed.batches(epoch, start) -> (inputs, keywords, rows), each for step(*inputs, **keywords)

Which rows a batch has depends on seed and epoch alone: it is the same for any number of ranks, and after a
resume in the middle of an epoch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from operator import index
from typing import Any

import numpy as np

import synk
from synk.extensions.batches import batches
from synk.extensions.fit.prefetch import prefetched
from synk.values.checks import checked_count

Batches = Generator[tuple[Sequence[Any], Mapping[str, Any], int], None, None]


@dataclass(frozen=True)
class RowOrder:
    """The rows of every epoch, in batches."""

    n_rows: int
    batch_size: int
    seed: int
    shuffle: bool

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield row numbers, or slices where they are not shuffled."""
        chosen = batches(self.n_rows, self.batch_size, seed=(self.seed, epoch), shuffle=self.shuffle)
        return islice(chosen, start, None)


@dataclass(frozen=True)
class Feed:
    """The source of a training's batches, epoch by epoch."""

    made: Callable[[int, int], Batches]
    rows: RowOrder | None = None  # the order of the rows; None if the data yield whole batches

    def batches(self, epoch: int, start: int = 0) -> Batches:
        """Yield the batches of an epoch, but for the first `start`."""
        return self.made(epoch, start)

    @property
    def n_steps(self) -> int | None:
        """The batches of an epoch, the last one with what remains; None where that is not known."""
        return None if self.rows is None else -(-self.rows.n_rows // self.rows.batch_size)

    def order(self) -> dict[str, Any]:
        """Return the plain values that decide on the order of the rows."""
        return {} if self.rows is None else vars(self.rows)


def feed(
    step: synk.Function,
    data: Any,
    batch_size: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    n_rows: int | None = None,
    num_slices: int = 1,
) -> Feed:
    """Return the feed for a step; arguments and errors are those of `synk.extensions.fit.fit`."""
    if not isinstance(step, synk.Function):
        raise TypeError(f"step={step!r} is no synk.Function; pass what make_train_function returned")
    slices = {"num_slices": checked_count("num_slices", num_slices, 1)}
    if callable(data) and n_rows is not None:
        rows = _rows(n_rows, batch_size, seed, shuffle)
        return Feed(lambda *place: prefetched(_of_rows(data, rows, slices, *place)), rows)
    if n_rows is not None:
        raise TypeError(f"n_rows={n_rows} is for data that is a function of row numbers; leave it out")
    if callable(data) or not (isinstance(data, tuple | list | Mapping) or hasattr(data, "__array__")):
        if batch_size is not None:
            raise TypeError(
                f"batch_size={batch_size}, but the data yields batches: leave it out; or pass n_rows, if it "
                "is a function of row numbers"
            )
        if not callable(data) and not isinstance(data, Iterable):
            raise TypeError(f"data={data!r} is neither arrays, nor a function, nor iterable")
        return Feed(lambda *place: prefetched(_of_iterables(data, step, slices, *place)))
    inputs = inputs_of(step, data)
    if not step.scattered:
        raise ValueError(f"{step!r} has no scattered input; pass a function of row numbers, and n_rows")
    rows = _rows(common_rows(step, inputs), batch_size, seed, shuffle)
    return Feed(lambda *place: _of_arrays(inputs, rows, slices, *place), rows)


def _of_arrays(
    inputs: tuple[synk.Data, ...], rows: RowOrder, slices: dict[str, int], epoch: int, start: int
) -> Batches:
    for chosen in rows.batches(epoch, start):
        n_rows = chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)
        yield inputs, {"batch": chosen, **slices}, n_rows


def _of_rows(make: Any, rows: RowOrder, slices: dict[str, int], epoch: int, start: int) -> Batches:
    draws = "rng" in inspect.signature(make).parameters
    for number, chosen in zip(count(start), rows.batches(epoch, start), strict=False):
        numbers = np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
        # The last number keeps it apart from the generator that orders the rows.
        given = {"rng": np.random.default_rng((rows.seed, epoch, number, 1))} if draws else {}
        inputs, keywords = _call(make(numbers, **given))
        yield inputs, {**slices, **keywords}, len(numbers)


def _of_iterables(data: Any, step: synk.Function, slices: dict[str, int], epoch: int, start: int) -> Batches:
    for made in islice(data(epoch) if callable(data) else data, start, None):
        inputs, keywords = _call(made)
        yield inputs, {**slices, **keywords}, _rows_of_call(step, inputs, keywords)


def _rows_of_call(step: synk.Function, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """Return how many rows a call has, on all ranks together; 1 if no input has any."""
    batch = keywords.get("batch")
    if keywords.get("batch_s") is not None:
        raise TypeError("batches with batch_s: pass a function of row numbers, and n_rows, so rows are known")
    if batch is not None and not isinstance(batch, slice):
        return len(batch) if np.ndim(batch) else index(batch)
    if not step.scattered:
        return 1
    first = step.scattered[0]
    place = step.inputs.index(first)
    value: Any = inputs[place] if place < len(inputs) else keywords.get(first.name)
    n_rows = np.shape(value)[0] if np.ndim(value) else 1
    return n_rows if batch is None else len(range(n_rows)[batch])


def inputs_of(function: synk.Function, data: Any) -> tuple[synk.Data, ...]:
    """Return `Data` for the inputs of a function, in order, of arrays and Data in a tuple or dict."""
    if isinstance(data, Mapping):
        names = [variable.name for variable in function.inputs]
        if set(names) != set(data):
            raise TypeError(f"data has {sorted(data)}, but the inputs of {function.name!r} are {names}")
        data = [data[name] for name in names]
    elif not isinstance(data, tuple | list):
        data = (data,)
    if len(data) != len(function.inputs):
        raise TypeError(
            f"data has {len(data)} entries, but {function!r} has {len(function.inputs)} inputs; for batches, "
            "pass a function of the epoch that returns an iterable of them"
        )
    return tuple(
        value if isinstance(value, synk.Data) else synk.data(value, var=variable, name=variable.name)
        for variable, value in zip(function.inputs, data, strict=True)
    )


def common_rows(step: synk.Function, inputs: Sequence[synk.Data]) -> int:
    """Return how many rows the scattered inputs have; raise ValueError if they differ, or there are none."""
    scattered = {id(variable) for variable in step.scattered}
    of_inputs = {
        variable.name or f"input {position}": len(entry)
        for position, (variable, entry) in enumerate(zip(step.inputs, inputs, strict=True))
        if id(variable) in scattered and not entry.minibatch
    }
    if not of_inputs:
        raise ValueError("all scattered inputs are Data of minibatches, whose rows belong to those of others")
    if len(set(of_inputs.values())) != 1:
        raise ValueError(f"inputs have different numbers of rows: {of_inputs}")
    n_rows = next(iter(of_inputs.values()))
    if n_rows == 0:
        raise ValueError(f"the data of {step!r} have no rows")
    return n_rows


def _rows(n_rows: int, batch_size: int | None, seed: int, shuffle: bool) -> RowOrder:
    if batch_size is None:
        raise TypeError("batch_size is missing; pass the rows of a step, on all ranks together")
    return RowOrder(
        checked_count("n_rows", n_rows, 1),
        checked_count("batch_size", batch_size, 1),
        checked_count("seed", seed, 0),
        bool(shuffle),
    )


def _call(made: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return inputs and keywords of a call: of a tuple of inputs, a single one, or a dict of keywords."""
    if isinstance(made, Mapping):
        return (), made
    return (made, {}) if isinstance(made, tuple | list) else ((made,), {})
