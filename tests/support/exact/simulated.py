"""Run a definition as several ranks would, in threads of one process, and as one process would.

define -> exact_definition -> each rank's rows, numbers and communicator -> node by node -> combine
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Constant

from synk.compile.programs.graphs.serialize import topological
from synk.compile.programs.graphs.substitute import substitute
from synk.compile.tables import array_funcify
from synk.exact.definition import Definition
from synk.exact.results import exact_definition
from synk.exact.run_values import first_row, leads, n_rows, ranks, total_rows
from synk.run.rank.compiled_calls import RowlessCommunicator
from synk.values.messages import Results
from synk.values.operations import UFUNCS
from synk.values.reduction import Output, combine
from synk.values.rows import split

DEADLINE = 20  # seconds


class ThreadRanks:
    """The state that the communicators of one run share."""

    def __init__(self, n_ranks: int):
        self.barrier = threading.Barrier(n_ranks, timeout=DEADLINE)
        self.arrays: list[Any] = [None] * n_ranks
        self.count = 0  # of collectives, as rank 0 counts them
        self.gathered = 0


class ThreadCommunicator:
    """The collectives that graphs have, between threads."""

    def __init__(self, rank: int, together: ThreadRanks):
        self.rank, self.n_ranks, self._together = rank, len(together.arrays), together

    @property
    def on_host(self) -> ThreadCommunicator:
        return self

    def _all(self, array: Any) -> list[Any]:
        together = self._together
        together.arrays[self.rank] = np.array(array)
        together.barrier.wait()
        arrays = list(together.arrays)
        together.barrier.wait()
        together.count += self.rank == 0
        return arrays

    def all_reduce(self, array: Any, op: str) -> Any:
        arrays = self._all(array)
        assert len({(one.dtype, one.shape) for one in arrays}) == 1, [one.shape for one in arrays]
        result = arrays[0].copy()
        for other in arrays[1:]:
            result = UFUNCS[op](result, other)
        return result

    def all_gather(self, array: Any, shared: Any = None, read: Any = list) -> Any:
        self._together.gathered += self.rank == 0
        return read(self._all(array))


def value_of(variable: Any) -> Any:
    if isinstance(variable, Constant):
        return np.array(variable.data) if isinstance(variable.data, np.ndarray) else variable.data
    return variable.get_value()


class Graph:
    """Variables, computed node by node with the linker's implementations."""

    def __init__(self, results: Sequence[Any]):
        self._results = list(results)
        self._nodes = [(node, array_funcify(node.op, node, np)) for node in topological(results)]

    def __call__(self, given: Mapping[Any, Any]) -> list[Any]:
        values = dict(given)

        def of(variable: Any) -> Any:
            if variable not in values:
                values[variable] = value_of(variable)
            return values[variable]

        with np.errstate(all="ignore"):
            for node, run in self._nodes:
                results = run(*map(of, node.inputs))
                results = results if len(node.outputs) > 1 else (results,)
                values.update(zip(node.outputs, results, strict=True))
        return [np.array(of(result)) for result in self._results]


class OneProcess:
    """The reference: a graph as it is written, computed in one process."""

    def __init__(self, definition: Definition):
        self._inputs = definition.all_inputs
        self._graph = Graph([*definition.outputs, *(update.value for update in definition.updates)])

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Return outputs and new values of updates."""
        return self._graph(dict(zip(self._inputs, values, strict=True)))


def one_process(definition: Definition, values: Sequence[Any]) -> list[Any]:
    """Return outputs and new values of updates, as one process computes them."""
    return OneProcess(definition)(values)


class Simulated:
    """An exact definition, run on as many ranks as wanted."""

    def __init__(self, definition: Definition):
        self.exact = exact = exact_definition(definition)
        rows = {
            variable: variable.type.clone(shape=(None, *variable.type.shape[1:]))()
            for variable in exact.inputs
        }
        results = [*exact.outputs, *(update.value for update in exact.updates)]
        self._graph = Graph(substitute(results, rows))
        self._rows = list(rows.values())

    def __call__(
        self, values: Sequence[Any], n_ranks: int, lengths: Sequence[int] | None = None
    ) -> list[Any]:
        """Return outputs as the master would combine them, and updates, which all ranks must agree on."""
        exact, n_scattered = self.exact, len(self.exact.inputs)
        total = len(values[0]) if n_scattered else 1
        parts = split(total, n_ranks)
        self.together = together = ThreadRanks(n_ranks)
        found: list[Any] = [None] * n_ranks

        def run(rank: int) -> None:
            start, stop = parts[rank] if n_scattered else (0, 1)
            lead = rank == 0 if not (n_scattered and total) else start == 0 and stop > start
            communicator: Any = ThreadCommunicator(rank, together)
            if total and start == stop:  # a row stands in, and adds nothing
                start, stop, communicator = (
                    max(start, 1) - 1,
                    max(start, 1),
                    RowlessCommunicator(communicator),
                )
            given = {variable: value[start:stop] for variable, value in zip(self._rows, values, strict=False)}
            given.update(zip(exact.bcast_inputs, values[n_scattered:], strict=True))
            numbers = {n_rows: stop - start, total_rows: total, first_row: start}
            given.update({variable: np.asarray(number) for variable, number in numbers.items()})
            given.update({leads: np.asarray(lead), ranks: communicator})
            try:
                found[rank] = self._graph(given)
            except BaseException as error:
                found[rank] = error
                together.barrier.abort()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(1, n_ranks)]
        for thread in threads:
            thread.start()
        run(0)
        for thread in threads:
            thread.join()
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        assert not errors
        n_outputs = len(exact.outputs)
        present = [
            Results(one[:n_outputs], stop - start) if stop > start or (not total and rank == 0) else None
            for rank, (one, (start, stop)) in enumerate(
                zip(found, parts if n_scattered else [(0, 1)] * n_ranks, strict=True)
            )
        ]
        outputs = [
            Output(mode, getattr(output.type, "dtype", None), "it", axis)
            for output, mode, axis in zip(exact.outputs, exact.output_modes, exact.output_axes, strict=True)
        ]
        for one in found[1:]:
            for mine, other in zip(found[0][n_outputs:], one[n_outputs:], strict=True):
                assert np.array_equal(mine, other, equal_nan=True), "ranks update differently"
        return [*(combine(outputs, present) if outputs else []), *found[0][n_outputs:]]
