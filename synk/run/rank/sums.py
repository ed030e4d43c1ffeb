"""Accumulate the results of one rank's slices, on the host or the device, wherever the program leaves them.

    results of a slice -> Sums.add -> parts -> collectives with the other ranks -> Sums.complete
                                   -> updates: new values of variables, which stay on the device
                                   -> results: the outputs, brought to the host once

`Accumulator` adds up arrays on the host, `DeviceAccumulator` arrays on a device, in the same order
and to the same bits; so the gradients of many slices are not copied to the host. Only rows that are joined
("gather") go to the host slice by slice: calls are sliced because the device has no room for them.

Large results of a call of one slice go to the host at once. Small ones go after the last step of the command,
because fetching even a number waits for all that the device has to do.

    program -> to_host_if_large -> Results ... last step of a command -> on_host -> reply
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from synk.run.device import Device
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.values import messages
from synk.values.accumulator import Accumulator, PartialResult, shapes_differ
from synk.values.operations import UFUNCS, accumulating_dtype

SMALL = 1024  # results of at most so many bytes stay on the device until the command ends


def to_host_if_large(value: Any, device: Device) -> Any:
    """Return a result on the host if it is large; a small one stays where it is."""
    return value if getattr(value, "nbytes", 0) <= SMALL else device.to_host(value)


def on_host(results: Iterable[Any], device: Device) -> tuple[Any, ...]:
    """Return the results of steps, with all arrays in `Results` brought to the host."""
    return tuple(
        messages.Results([*map(device.to_host, result.values)], result.weight)
        if isinstance(result, messages.Results)
        else result
        for result in results
    )


class Sums:
    """Accumulates a function's outputs, updates and parts over slices, which have ``n_rows`` rows in all."""

    def __init__(self, spec: ProgramSpec, device: Device, n_rows: int):
        self._spec, self._device, self._n_rows = spec, device, n_rows
        outputs = spec.output_modes
        modes = [*outputs, *[update.mode if update.needs_rows else None for update in spec.updates]]
        self._modes = [*modes, *spec.parts]
        self._n_outputs, self._n_results = len(outputs), len(modes)
        self._totals: list[Accumulator | DeviceAccumulator] = []

    def add(self, values: Sequence[Any], weight: int) -> None:
        """Add the results of a slice of ``weight`` rows: outputs, updates, parts.

        None stands for results that are computed from the parts of all slices.
        """
        values = [
            self._device.to_host(value) if k < self._n_outputs and mode == "gather" else value
            for k, (mode, value) in enumerate(zip(self._modes, values, strict=True))
        ]
        # A program leaves a result on the same side, host or device, in every slice.
        self._totals = self._totals or [*map(self._accumulator, self._modes, values)]
        for position, (total, value) in enumerate(zip(self._totals, values, strict=True)):
            try:
                total.add(value, weight)
            except (TypeError, ValueError) as error:
                what = f"{self._called(position)} is not reduced by {total.mode!r}"
                raise ValueError(f"{what}: {error}") from None

    def _called(self, position: int) -> str:
        """Return how errors name the result at a position among outputs, updates and parts."""
        k = position - self._n_outputs
        kind = "output" if k < 0 else "update" if position < self._n_results else "part"
        k = position if k < 0 else k if position < self._n_results else position - self._n_results
        return f"{kind} {k} of {self._spec.name!r}"

    def _accumulator(self, mode: str | None, value: Any) -> Accumulator | DeviceAccumulator:
        if mode is None or isinstance(value, np.ndarray | np.generic):
            return Accumulator(mode)
        return DeviceAccumulator(mode, self._device.xp, self._n_rows)

    def parts(self) -> list[Any]:
        """Return the accumulated parts, in the dtypes of the accumulation, which may be wider."""
        return [_result(total).value for total in self._totals[self._n_results :]]

    def complete(self, values: Sequence[Any]) -> None:
        """Add the outputs and updates that were computed from the parts of all slices."""
        for position, value in zip(self._spec.completed, values, strict=True):
            self._totals[position].add(value, self._n_rows)

    def updates(self) -> Iterator[tuple[UpdateSpec, Any]]:
        """Yield each update and its accumulated value, in the dtype of the accumulation."""
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
    """Accumulates arrays on a device as `Accumulator` does on the host.

    Whether a sum has overflowed is not checked, as that would wait for the device. So that the sums of an
    average do not overflow, it adds up ``value * (weight / scale)``, where ``scale`` is a power of two
    greater than the number of all rows: this gives the same bits, and the sum is no larger than the values.
    (Numbers smaller than the smallest normal number may lose bits, and an average within rounding of the
    largest number may be infinite.)

    Parameters
    ----------
    mode : {"avg", "sum", "prod", "min", "max", "gather"}
    xp : module
    n_rows : int
        The number of rows of all values that will be added.
    """

    def __init__(self, mode: str, xp: Any, n_rows: int):
        self.mode = mode
        self.weight = 0
        self._xp = xp
        self._scale = 2.0 ** (n_rows.bit_length() + 1)
        self._values: list[Any] = []
        self._owned = False  # whether the running value is a copy that may be overwritten

    def add(self, value: Any, weight: int) -> None:
        """Add a value over ``weight`` rows; the first value is not copied."""
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
        """Return a value as it is added up: in a wider dtype if need be, for an average times its weight."""
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
