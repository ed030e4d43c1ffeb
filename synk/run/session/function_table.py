"""The master's record of the functions that the ranks have, and of which are compiled there.

GraphFunction.ready -> install: Build, to all ranks
    -> compile, before the first call: a command, with the graphs that rank 0 has rewritten -> forget
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from synk.compile.observe.profile import Profile
from synk.run.arrays.run_memory import Messenger, RunMemory
from synk.run.functions.graph_function import GraphFunction
from synk.run.rank.rank import Rank
from synk.run.recording.replaced import ReplacedMethods
from synk.values import messages


class FunctionTable:
    """The functions and objects that the ranks of a run have, by number: it implements `owner.Functions`.

    ``run(steps)`` runs a command on all ranks.

    Attributes
    ----------
    numbers, object_numbers : iterator of int
        Give the next function, and the next object of `synk.on_ranks`, its number.
    functions : WeakSet of GraphFunction
        All functions of the run that the script still holds.
    profile : Profile or None
        The profile that measures rank 0's programs inside `profiled`.
    """

    def __init__(self, rank: Rank, messenger: Messenger, memory: RunMemory, run: Callable[..., Any]):
        self._rank, self._messenger, self._memory, self._run = rank, messenger, memory, run
        self.numbers, self.object_numbers = itertools.count(1), itertools.count(1)
        self.functions: weakref.WeakSet[GraphFunction] = weakref.WeakSet()
        self.profile: Profile | None = None
        self._compiled: set[tuple[int, bool]] = set()  # (number of a function, whether for several slices)

    def install(self, message: messages.Build) -> None:
        self._compiled -= {(message.function, False), (message.function, True)}
        self._messenger.post(message)
        self._rank.build(message)

    def compile(self, programs: Sequence[tuple[int, int]]) -> None:
        missing = [one for one in programs if (one[0], one[1] > 1) not in self._compiled]
        # With NumPy ranks must agree on what runs as C; with other array modules each compiles when called.
        if missing and self._rank.device.xp is np:
            self._compile(missing)

    def compile_all(self, num_slices: int) -> None:
        """Send all functions to the ranks, and compile them there, for one slice and for ``num_slices``."""
        functions = list(self.functions)  # held in a list, so that none can be deleted meanwhile
        numbers = tuple(sorted(function.ready() for function in functions))
        self._compile([(number, n) for n in sorted({1, num_slices}) for number in numbers])

    def _compile(self, programs: Sequence[tuple[int, int]]) -> None:
        """Compile functions on all ranks by one command; ``programs`` are as in `owner.Functions.compile`."""
        rewritten = tuple((*program, self._rewritten(*program)) for program in programs)
        self._run((messages.Compile(rewritten),))
        self._compiled.update((function, num_slices > 1) for function, num_slices in programs)

    def _rewritten(self, function: int, num_slices: int) -> dict[str, bytes]:
        """Return the rewritten graphs of a function, by variant: rank 0 rewrites for all ranks.

        There are none for another array module than NumPy: each rank rewrites for itself.
        """
        rank_0_rewrites = self._rank.n_ranks > 1 and self._rank.device.xp is np
        return self._rank.program(function).variants.graphs(num_slices) if rank_0_rewrites else {}

    def note_new_workers(self) -> None:
        """Note that workers are new: they were started with all functions, but have compiled none."""
        self._compiled.clear()

    def run_alone(self, function: int, arrays: Sequence[Any]) -> list[Any]:
        self._rank.device.bind()
        return list(self._rank.program(function).alone(arrays)())

    def forget(self, function: int) -> None:
        self._compiled -= {(function, False), (function, True)}
        message = messages.Forget(function)
        self._rank.forget(message)
        self._memory.staging.drop_owned_by(function)
        self._messenger.release(message)

    def drop_object(self, number: int) -> None:
        message = messages.DropObject(number)
        self._rank.drop_object(message)
        self._messenger.release(message)

    # --- profiles --------------------------------------------------------------------------------

    @contextmanager
    def profiled(self, profile: Profile) -> Iterator[None]:
        """Inside this context, ``profile`` measures the nodes of rank 0's programs, and its collectives."""
        watched = ReplacedMethods()
        self.profile = profile
        try:
            watched.watch_collectives(self._rank.communicator, profile.collective)
            yield
        finally:
            self.profile = None
            watched.put_back()

    @contextmanager
    def observed(self, steps: Sequence[Any], profile: Profile) -> Iterator[None]:
        """Inside this context, rank 0 runs the functions of ``steps`` as programs watched by ``profile``."""
        calls = [step for step in steps if isinstance(step, messages.Call)]
        for number in {number for step in calls for number in step.functions()}:
            if number not in profile.programs:
                program = self._rank.program(number)
                profile.programs[number] = program.observed(profile.of(program.spec.name))
        with self._rank.running(profile.programs):
            yield
