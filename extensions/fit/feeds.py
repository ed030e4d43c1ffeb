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

Batches = Generator[tuple[Sequence[Any], Mapping[str, Any], int], None, None]


@dataclass(frozen=True)
class Rows:
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
    """Batches of one epoch after the other."""

    made: Callable[[int, int], Batches]
    rows: Rows | None = None  # that they are made of; None where something else yields them

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
    slices = {"num_slices": num_slices}
    if callable(data) and n_rows is not None:
        rows = _rows(n_rows, batch_size, seed, shuffle)
        return Feed(lambda *place: prefetched(_of_rows(data, rows, slices, *place)), rows)
    if n_rows is not None:
        raise TypeError(f"n_rows={n_rows} is for data that is a function of row numbers; leave it out")
    if callable(data) or not isinstance(data, tuple | list | Mapping | np.ndarray | synk.Data):
        if batch_size is not None:
            raise TypeError(f"batch_size={batch_size}, but the data yields batches; leave it out")
        if not callable(data) and not isinstance(data, Iterable):
            raise TypeError(f"data={data!r} is neither arrays, nor a function, nor iterable")
        return Feed(lambda *place: prefetched(_of_iterables(data, slices, *place)))
    inputs = inputs_of(step, data)
    if not step.scattered:
        raise ValueError(f"{step!r} has no scattered input; pass a function of row numbers, and n_rows")
    rows = _rows(_common_rows(step, inputs), batch_size, seed, shuffle)
    return Feed(lambda *place: _of_arrays(inputs, rows, slices, *place), rows)


def _of_arrays(
    inputs: tuple[synk.Data, ...], rows: Rows, slices: dict[str, int], epoch: int, start: int
) -> Batches:
    for chosen in rows.batches(epoch, start):
        n_rows = chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)
        yield inputs, {"batch": chosen, **slices}, n_rows


def _of_rows(make: Any, rows: Rows, slices: dict[str, int], epoch: int, start: int) -> Batches:
    draws = "rng" in inspect.signature(make).parameters
    for number, chosen in zip(count(start), rows.batches(epoch, start), strict=False):
        numbers = np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
        given = {"rng": np.random.default_rng((rows.seed, epoch, number))} if draws else {}
        inputs, keywords = _call(make(numbers, **given))
        yield inputs, {**slices, **keywords}, len(numbers)


def _of_iterables(data: Any, slices: dict[str, int], epoch: int, start: int) -> Batches:
    for made in islice(data(epoch) if callable(data) else data, start, None):
        inputs, keywords = _call(made)
        yield inputs, {**slices, **keywords}, len(inputs[0]) if inputs and np.ndim(inputs[0]) else 1


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
        raise TypeError(f"data has {len(data)} entries, but {function!r} has {len(function.inputs)} inputs")
    return tuple(
        value if isinstance(value, synk.Data) else synk.data(value, var=variable, name=variable.name)
        for variable, value in zip(function.inputs, data, strict=True)
    )


def _common_rows(step: synk.Function, inputs: Sequence[synk.Data]) -> int:
    scattered = {id(variable) for variable in step.scattered}
    of_inputs = {
        variable.name or f"input {position}": len(entry)
        for position, (variable, entry) in enumerate(zip(step.inputs, inputs, strict=True))
        if id(variable) in scattered and not entry.minibatch
    }
    if len(set(of_inputs.values())) != 1:
        raise ValueError(f"inputs have different numbers of rows: {of_inputs}")
    return next(iter(of_inputs.values()))


def _rows(n_rows: int, batch_size: int | None, seed: int, shuffle: bool) -> Rows:
    if batch_size is None:
        raise TypeError("batch_size is missing; pass the rows of a step, on all ranks together")
    for name, value, least in (("n_rows", n_rows, 0), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        try:
            index(value)
        except TypeError:
            raise TypeError(f"{name}={value!r} is not an integer") from None
        if value < least:
            raise ValueError(f"{name}={value} is less than {least}")
    if n_rows == 0:
        raise ValueError("the data has no rows; there is nothing to train on")
    return Rows(index(n_rows), index(batch_size), index(seed), bool(shuffle))


def _call(made: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return inputs and keywords of a call: of a tuple of inputs, a single one, or a dict of keywords."""
    if isinstance(made, Mapping):
        return (), made
    return (made, {}) if isinstance(made, tuple | list) else ((made,), {})
