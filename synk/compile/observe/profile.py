"""Time every node of programs while they run, and account for the memory that they hold.

    emit -> Profile(node, implementation) -> a timed implementation -> Profile.report() -> Report

Usable without the rest of synk:

    profile = Profile()
    f = pytensor.function([x], y, mode=array_mode(ArrayLinker(observe=profile)))
    with profile.call():
        f(value)
    print(profile.report())
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import count
from time import perf_counter_ns
from typing import Any

import numpy as np
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.tensor.blockwise import Blockwise

from synk.compile.linker import ArrayLinker
from synk.compile.observe.report import Record, Report, Slice
from synk.compile.programs.emit import Observer
from synk.compile.programs.graphs.origin import nearest_lines
from synk.compile.programs.text.program_writer import label
from synk.compile.regions.region import nodes_of
from synk.compile.tables import flops_of

MAX_SLICES = 200_000  # the latest runs are kept for the trace


class Profile:
    """An observer that times nodes.

    One profile may watch several programs. Its own work takes about a microsecond a node, and is counted as
    time outside nodes.
    """

    def __init__(self) -> None:
        self.programs: dict[int, Any] = {}  # of functions of a run, compiled to be watched
        self._records: list[Record] = []
        self._slices: deque[Slice] = deque(maxlen=MAX_SLICES)
        self._calls: list[Slice] = []
        self._collectives: dict[str, Record] = {}
        self._collected = 0  # nanoseconds in collectives so far
        self._ledger: Ledger | None = None
        self._measured = Ledger()
        self._nameless = self.of("")

    def __call__(self, node: Apply, implementation: Callable) -> Callable:
        """Return ``implementation`` with a clock around it, which notes each run."""
        return self._nameless(node, implementation)

    def of(self, program: str) -> Observer:
        """Return this profile as the observer of one program, which reports call ``program``."""
        numbers = count()

        def observe(node: Apply, implementation: Callable) -> Callable:
            nodes = nodes_of(node)
            inside = [(str(one.op), _built(one)) for one in nodes] if len(nodes) > 1 else []
            record = Record(
                program, _kind(node), str(node), next(numbers), _built(node), flops_of(node.op), inside
            )
            self._records.append(record)
            return self._timed(record, implementation)

        return observe

    def collective(self, name: str, run: Callable) -> Callable:
        """Return a collective's function ``run`` with a clock around it, which notes runs under ``name``."""
        record = Record("", name, name, len(self._collectives), "", None)
        return self._timed(self._collectives.setdefault(name, record), run, of_node=False)

    @contextmanager
    def call(self, name: str = "call") -> Iterator[None]:
        """Count what runs within this context as one call; a call's time includes that outside of nodes."""
        begin = perf_counter_ns()
        yield
        self._calls.append(Slice(name, "call", begin, perf_counter_ns(), ()))

    @contextmanager
    def memory(self) -> Iterator[None]:
        """Within this context, count the bytes of living arrays that nodes have made, instead of time."""
        self._ledger = self._measured
        try:
            yield
        finally:
            self._ledger = None

    def report(self, name: str = "", rank: int = 0) -> Report:
        """Return all measurements so far."""
        ran = [record for record in self._records if record.runs]
        collectives = [record for record in self._collectives.values() if record.runs]
        return Report(name, rank, ran, collectives, list(self._calls), list(self._slices), self._measured)

    def _timed(self, record: Record, run: Callable, of_node: bool = True) -> Callable:
        clock, note = perf_counter_ns, self._note

        def timed(*inputs, **keywords):
            before, begin = self._collected, clock()
            result = run(*inputs, **keywords)
            end = clock()
            # A node in which the ranks meet takes what the collective leaves of its time.
            taken = end - begin - (self._collected - before)
            if not of_node:
                self._collected += taken
            results = result if isinstance(result, tuple) else (result,)
            if self._ledger is None:
                note(record, begin, end, taken, inputs, results)
            elif of_node:
                self._ledger.add(record.node, inputs, results)
            return result

        return timed

    def _note(
        self, record: Record, begin: int, end: int, taken: int, inputs: Sequence[Any], results: Sequence[Any]
    ) -> None:
        outputs = tuple([(getattr(v, "dtype", type(v).__name__), getattr(v, "shape", ())) for v in results])
        record.add(taken, inputs, results, outputs)
        self._slices.append(Slice(record.node, record.op, begin, end, outputs))


def _built(node: Apply) -> str:
    """Return the user's line that built a node, as file and number."""
    lines = nearest_lines(node)
    return f"{lines[0][0]}:{lines[0][1]}" if lines else ""


def _kind(node: Apply) -> str:
    """Return the name under which times of nodes are added up: of a Blockwise, that of its core Op."""
    return type(node.op.core_op).__name__ if isinstance(node.op, Blockwise) else label(node)


def observed_mode(mode: Any, observe: Callable) -> Mode:
    """Return a mode like ``mode`` with ``observe`` around every node.

    Raises TypeError if the mode's linker is no `ArrayLinker`.
    """
    linker = getattr(mode, "linker", None)
    if not isinstance(linker, ArrayLinker):
        raise TypeError(
            f"mode={mode!r} makes no array programs, so their nodes cannot be watched; "
            "leave mode out, or pass synk.compile.array_mode()"
        )
    linker = copy(linker)
    linker.observe = observe
    return Mode(linker, mode.provided_optimizer)


class Ledger:
    """A count of the bytes of arrays that nodes have made and that are alive.

    It holds weak references to the arrays, so it costs next to nothing and serves every array module. It does
    not see what a node allocates and frees while it runs.
    """

    def __init__(self) -> None:
        self.current, self.peak = 0, 0  # bytes now, and at most so far
        self.at = ""  # the node after which the peak was reached
        self._alive: dict[int, weakref.ref] = {}

    def add(self, node: str, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Count the results of a node, except views of its inputs and inputs that it wrote to."""
        known = self._alive.keys() | {id(memory_of(value)) for value in inputs}
        for value in map(memory_of, results):
            if id(value) not in known and hasattr(value, "nbytes") and not isinstance(value, np.generic):
                self.current += value.nbytes
                drop = partial(self._drop, id(value), value.nbytes)
                self._alive[id(value)] = weakref.ref(value, drop)
                known = known | {id(value)}
        if self.current > self.peak:
            self.peak, self.at = self.current, node

    def _drop(self, identity: int, nbytes: int, _: weakref.ref) -> None:
        self.current -= nbytes
        del self._alive[identity]


def memory_of(value: Any) -> Any:
    """Return the array that owns the memory of ``value``; values that are no arrays own themselves."""
    base = getattr(value, "base", None)
    while base is not None and isinstance(base, type(value)):
        value, base = base, base.base
    return value
