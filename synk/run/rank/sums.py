"""Add up the slices of one rank, each result on the side where its program leaves it.

    results of a slice -> Sums.add -> parts -> what follows, with the other ranks -> Sums.complete
                                   -> updates: new values of variables, never brought to the host
                                   -> results: the outputs, brought there once

Arrays of the host are the business of `reduction.Accumulator`; those of a device add up here, in the same
order and to the same bits, so the gradients of many slices cross no bus. Rows that are joined would fill the
device that calls are sliced for, so they go to the host slice by slice.

Large results of one slice go to the host at once. Small ones go when nothing is left to launch, for to fetch
a number is to wait for the GPU.

    program -> small_stay -> Results ... last step of a command -> on_host -> reply
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from synk.run.device import Device
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.values import messages
from synk.values.reduction import UFUNCS, Accumulator, PartialResult, accumulating_dtype, shapes_differ

SMALL = 1024  # bytes of a result that need not leave the device at once


def small_stay(value: Any, device: Device) -> Any:
    """Return a result on the host, or a small one where it is."""
    return value if getattr(value, "nbytes", 0) <= SMALL else device.to_host(value)


def on_host(results: Iterable[Any], device: Device) -> tuple[Any, ...]:
    """Return the results of steps, the arrays in `Results` on the host."""
    return tuple(
        messages.Results([*map(device.to_host, result.values)], result.weight)
        if isinstance(result, messages.Results)
        else result
        for result in results
    )


class Sums:
    """Outputs and updates of a function, accumulated slice by slice, of ``n_rows`` rows together."""

    def __init__(self, spec: ProgramSpec, device: Device, n_rows: int):
        self._spec, self._device, self._n_rows = spec, device, n_rows
        outputs = spec.output_modes
        modes = [*outputs, *[update.mode if update.needs_rows else None for update in spec.updates]]
        self._modes = [*modes, *spec.parts]
        self._n_outputs, self._n_results = len(outputs), len(modes)
        self._totals: list[Accumulator | DeviceAccumulator] = []

    def add(self, values: Sequence[Any], weight: int) -> None:
        """Take in the results of a slice: outputs, updates, parts; None for what is made of parts."""
        values = [
            self._device.to_host(value) if k < self._n_outputs and mode == "gather" else value
            for k, (mode, value) in enumerate(zip(self._modes, values, strict=True))
        ]
        # Programs leave a result on the same side every time.
        self._totals = self._totals or [*map(self._accumulator, self._modes, values)]
        for position, (total, value) in enumerate(zip(self._totals, values, strict=True)):
            try:
                total.add(value, weight)
            except (TypeError, ValueError) as error:
                what = f"{self._called(position)} is not reduced by {total.mode!r}"
                raise ValueError(f"{what}: {error}") from None

    def _called(self, position: int) -> str:
        """Return the name of a result in errors."""
        k = position - self._n_outputs
        kind = "output" if k < 0 else "update" if position < self._n_results else "part"
        k = position if k < 0 else k if position < self._n_results else position - self._n_results
        return f"{kind} {k} of {self._spec.name!r}"

    def _accumulator(self, mode: str | None, value: Any) -> Accumulator | DeviceAccumulator:
        if mode is None or isinstance(value, np.ndarray | np.generic):
            return Accumulator(mode)
        return DeviceAccumulator(mode, self._device.xp, self._n_rows)

    def parts(self) -> list[Any]:
        """Return the parts of all slices, in the dtypes that were accumulated in."""
        return [_result(total).value for total in self._totals[self._n_results :]]

    def complete(self, values: Sequence[Any]) -> None:
        """Take in the outputs and updates that were made of the parts."""
        for position, value in zip(self._spec.completed, values, strict=True):
            self._totals[position].add(value, self._n_rows)

    def updates(self) -> Iterator[tuple[UpdateSpec, Any]]:
        """Yield each update and its value, in the dtype that was accumulated in."""
        totals = self._totals[self._n_outputs : self._n_results]
        for update, total in zip(self._spec.updates, totals, strict=True):
            yield update, _result(total).value

    def results(self) -> messages.Results:
        """Return the outputs, on the host."""
        totals = map(_result, self._totals[: self._n_outputs])
        return messages.Results([self._device.to_host(total.value) for total in totals], self._n_rows)


def _result(total: Accumulator | DeviceAccumulator) -> PartialResult:
    result = total.partial()
    assert result is not None, "there was a slice"
    return result


class DeviceAccumulator:
    """As `reduction.Accumulator`, of arrays on a device.

    Nobody looks there whether a sum overflowed, which would wait for the device. So an average adds up
    ``value * (weight / scale)``, where ``scale`` is a power of two beyond all rows: the same bits, and no
    larger than the values are. (What is smaller than the smallest normal number may lose bits, and an
    average within rounding of the largest number may be infinite.)

    Parameters
    ----------
    mode : {"avg", "sum", "prod", "min", "max", "gather"}
    xp : module
    n_rows : int
        Of all values that will be added.
    """

    def __init__(self, mode: str, xp: Any, n_rows: int):
        self.mode = mode
        self.weight = 0
        self._xp = xp
        self._scale = 2.0 ** (n_rows.bit_length() + 1)
        self._values: list[Any] = []
        self._owned = False  # whether the running value is ours to overwrite

    def add(self, value: Any, weight: int) -> None:
        """Take in a value over ``weight`` rows; the first one is not copied."""
        if not self._values or self.mode == "gather":
            self._values.append(value)
        elif value.shape != self._values[0].shape:
            raise ValueError(shapes_differ(self._values[0].shape, value.shape))
        else:
            if not self._owned:
                self._values = [self._term(self._values[0], self.weight, copy=True)]
                self._owned = True
            combine = getattr(self._xp, UFUNCS[self.mode].__name__)
            combine(self._values[0], self._term(value, weight), out=self._values[0])
        self.weight += weight

    def _term(self, value: Any, weight: int, copy: bool = False) -> Any:
        wide = value.astype(accumulating_dtype(value.dtype), copy=copy and self.mode != "avg")
        return wide * wide.dtype.type(weight / self._scale) if self.mode == "avg" else wide

    def partial(self) -> PartialResult | None:
        """Return the result so far, or None if nothing was added."""
        if not self._values:
            return None
        if self.mode == "gather":
            joined = self._xp.concatenate([self._xp.atleast_1d(value) for value in self._values])
            return PartialResult(joined, self.weight)
        value = self._values[0]
        if self._owned and self.mode == "avg":
            value = value / value.dtype.type(self.weight / self._scale)
        return PartialResult(value, self.weight)
