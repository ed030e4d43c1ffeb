"""Random numbers in recordings: remember which generator each draw uses, and draw its words for each replay.

    recording: Draws.stand_in -> LaterGenerator, which notes when it is copied or drawn from -> steps
    replay: Draws.advance(inputs of the call) -> repeat the steps -> words on the device, advanced generators

A draw on a GPU takes two words of 64 bits from a generator on the host, see
`synk.gpu.dispatch.device_random`. If the words were arguments of the recorded launch, each replay would draw
the same numbers; so kernels read them from memory, which is written before each replay. Generators advance as
without a recording, so the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from synk.compile.native.bit_generators import copy_generator
from synk.compile.programs.text.transfer import fill
from synk.gpu.dispatch.device_random import words_of

MOST_DRAWS = 1024  # of one recording, whose words take 16 bytes each


class LaterGenerator:
    """Take the place of a generator during a recording, and note how the program copies and uses it."""

    def __init__(self, draws: Draws, number: int):
        self.number = number
        self._draws = draws

    def __deepcopy__(self, memo: Any) -> LaterGenerator:
        """Return the replacement of a copy of the generator, which each replay will make."""
        return self._draws.copy_of(self.number)

    def integers(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the device memory that will hold the two words of a draw; `words_of` calls only this."""
        return self._draws.words(self.number)


class Draws:
    """The copies of generators and draws from them in a recorded program, in order, to be repeated."""

    def __init__(self, xp: ModuleType):
        self._xp = xp
        self._memory: Any = None  # for the words; allocated only for programs that have generators
        self._inputs: dict[int, int] = {}  # by number of the generator, its position among the inputs
        self._steps: list[Callable[[dict[int, Any], list[Any]], None]] = []
        self._n_generators = 0
        self._n_draws = 0

    # --- while it is recorded ------------------------------------------------------------------------

    def stand_in(self, position: int) -> LaterGenerator:
        """Return the replacement for the generator that is the input at ``position``."""
        if self._memory is None:  # not later, when launches are recorded already
            self._memory = self._xp.empty((MOST_DRAWS, 2), "uint64")
        generator = self._new()
        self._inputs[generator.number] = position
        return generator

    def copy_of(self, number: int) -> LaterGenerator:
        generator = self._new()

        def copied(generators, words):
            generators[generator.number] = copy_generator(generators[number])

        self._steps.append(copied)
        return generator

    def words(self, number: int) -> Any:
        if self._n_draws == MOST_DRAWS:
            raise RuntimeError(f"it draws random numbers more than {MOST_DRAWS} times")
        self._n_draws += 1
        self._steps.append(lambda generators, words: words.append(words_of(generators[number])))
        return self._memory[self._n_draws - 1]

    def _new(self) -> LaterGenerator:
        self._n_generators += 1
        return LaterGenerator(self, self._n_generators)

    # --- before each replay --------------------------------------------------------------------------

    def advance(self, inputs: Sequence[Any]) -> dict[int, np.random.Generator]:
        """Write the words of all draws of a replay; return the advanced generators, by number."""
        generators = {number: inputs[position] for number, position in self._inputs.items()}
        words: list[Any] = []
        for step in self._steps:
            step(generators, words)
        if words:
            fill(self._memory[: len(words)], np.array(words))
        return generators
