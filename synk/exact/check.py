"""Compare the first call of a function with one process: ``synk.function(..., check="first")``.

before: FirstCall.expected(all rows) -> the graph as written, computed by the master alone
after:  FirstCall.compare(outputs) -> nothing, or a SynkError that names what differs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.compile import without_wrong
from synk.compile.programs.graphs.inside import for_mode
from synk.exact.by_numpy import by_numpy
from synk.exact.definition import UNDECLARED, Definition
from synk.exact.run_values import describe, first_row, leads, n_rows, ranks, total_rows
from synk.values.errors import SynkError

PLAIN = Mode(linker="py", optimizer=None)  # the graph as written, each Op by its own ``perform``
NUMBERS = (n_rows, total_rows, first_row, leads)


def checked(check: Any) -> Any:
    """Return the argument ``check``; raise ValueError unless it is "first"."""
    if check != "first":
        raise ValueError(f"check={check!r} is unknown; pass 'first', or None")
    return check


class FirstCall:
    """The comparison of a function's first call with the results of one process.

    Raises ValueError if the two may differ rightly: sliceable variables or random draws differ between ranks.
    """

    def __init__(self, written: Definition, check: str = "first"):
        self._written = written
        self._compared = [update for update in written.updates if update.mode is UNDECLARED]
        new_values = zip(written.updates, written.as_written[len(written.outputs) :], strict=True)
        compared = [value for update, value in new_values if update.mode is UNDECLARED]
        results = [*written.as_written[: len(written.outputs)], *compared]
        behind = list(ancestors([*results, *(update.value for update in written.updates)]))
        what = f"check={check!r} of {written.name!r}"
        if written.sliceables:
            raise ValueError(f"{what}: the ranks have rows of their own of {describe(written.sliceables[0])}")
        if any(isinstance(variable.type, RandomType) for variable in behind):
            raise ValueError(f"{what}: each rank draws random numbers of its own; check it without them")
        self._shared = [
            variable
            for variable in dict.fromkeys(behind)
            if isinstance(variable, SharedVariable) and variable is not ranks and variable not in NUMBERS
        ]
        self._results = results

    def expected(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the outputs and new values that one process computes from all rows.

        ``arrays`` are the inputs; shared variables are read as they are now, so call this before the ranks
        compute.
        """
        inputs = {variable: variable.type() for variable in (*NUMBERS, *self._shared)}
        mode = self._written.mode
        mode = PLAIN if mode in (None, "debug") else without_wrong(mode)
        function = pytensor.function(
            [*self._written.all_inputs, *inputs.values()],
            for_mode(by_numpy(self._results), mode),
            givens=inputs,
            mode=mode,
            on_unused_input="ignore",
            name=f"{self._written.name}, in one process",
        )
        length = len(arrays[0]) if self._written.inputs else 1
        numbers = [np.asarray(length), np.asarray(length), np.asarray(0), np.asarray(True)]
        return function(*arrays, *numbers, *(variable.get_value() for variable in self._shared))

    def compare(self, outputs: Sequence[Any], expected: Sequence[Any], n_ranks: int) -> None:
        """Raise SynkError if results of ranks differ from those of one process by more than rounding."""
        said = [
            *self._differences(
                [*outputs, *(update.variable.get_value() for update in self._compared)], expected
            )
        ]
        if said:
            raise SynkError(
                f"the first call of {self._written.name!r} on {n_ranks} ranks differs from one process "
                "(explain() says how its results are combined):\n" + "\n".join(said)
            )

    def _differences(self, found: Sequence[Any], expected: Sequence[Any]) -> Iterator[str]:
        written = self._written
        modes: list[Any] = [*written.output_modes, *[UNDECLARED] * len(self._compared)]
        names = [f"output {k} ({describe(output)})" for k, output in enumerate(written.outputs)]
        names += [f"the update of {describe(update.variable)}" for update in self._compared]
        for name, mode, mine, other in zip(names, modes, found, expected, strict=True):
            own = mode is None or (mode in ("gather", "c_gather") and np.shape(mine) != np.shape(other))
            text = None if own else difference(mine, other)
            if text is not None:
                yield f"{name}{'' if mode is UNDECLARED else f', declared {mode!r}'}: {text}"


def difference(found: Any, expected: Any) -> str | None:
    """Return in words how two values differ: in shape, in dtype or by more than rounding; else None.

    Elements may differ by the largest element times the square root of the dtype's precision, which is 1.5e-8
    for float64 and 3.5e-4 for float32. Where all elements are about 0, as sums that cancel out, they may
    differ by the precision to the power 3/4.
    """
    if hasattr(found, "toarray"):
        found, expected = found.toarray(), expected.toarray()
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return f"shape {found.shape}, in one process {expected.shape}"
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, in one process {expected.dtype}"
    if not found.size:
        return None
    exact = found.dtype.kind not in "fc"
    with np.errstate(all="ignore"):
        alike = (found == expected) | ((found != found) & (expected != expected))
        distances = np.where(alike, 0, np.abs(found.astype("complex128") - expected.astype("complex128")))
        finite = np.abs(expected[np.isfinite(expected)])
    room = 0.0
    if not exact:
        precision = float(np.finfo(found.dtype).eps)
        room = precision**0.5 * float(finite.max(initial=0)) + precision**0.75
    if not (distances > room).any() and not np.isnan(distances).any():
        return None
    at = np.unravel_index(np.argmax(np.where(np.isnan(distances), np.inf, distances)), found.shape)
    where = f" at {[int(k) for k in at]}" if at else ""
    return f"{found[at]:.8g}, in one process {expected[at]:.8g}{where}" + (
        f"; {np.count_nonzero(~(distances <= room))} of {found.size} differ" if at else ""
    )
