"""Random numbers in recordings: which generator gives which draw its words, noted once, done for each replay.

    recording: Draws.stand_in -> LaterGenerator: copied, asked for integers -> what a replay has to do
    replay: Draws.advance(inputs of the call) -> words on the device, generators as the program leaves them

A draw on a GPU takes two words of 64 bits from a generator on the host, see
`synk.gpu.dispatch.device_random`. Recorded as numbers they would be the same in every replay, so kernels
read them from memory that is written before each. Generators advance as they do without a recording, so
random numbers are the same.
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
    """Stand for a generator while launches are recorded: draws copy it and ask it for words."""

    def __init__(self, draws: Draws, number: int):
        self.number = number
        self._draws = draws

    def __deepcopy__(self, memo: Any) -> LaterGenerator:
        """Stand for a copy of the generator in the state that it will have."""
        return self._draws.copy_of(self.number)

    def integers(self, *arguments: Any, **keywords: Any) -> Any:
        """Return where the words of a draw will be, on the device; `words_of` asks for nothing else."""
        return self._draws.words(self.number)


class Draws:
    """The steps of a recording with the generators of a call, in the order of the program."""

    def __init__(self, xp: ModuleType):
        self._xp = xp
        self._memory: Any = None  # of the words, which none but programs with generators need
        self._inputs: dict[int, int] = {}  # by number of the generator, its position among the inputs
        self._steps: list[Callable[[dict[int, Any], list[Any]], None]] = []
        self._n_generators = 0
        self._n_draws = 0

    # --- while it is recorded ------------------------------------------------------------------------

    def stand_in(self, position: int) -> LaterGenerator:
        """Return the stand-in for an input of the program."""
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
        """Give all draws their words; return the generators as they are then, by number."""
        generators = {number: inputs[position] for number, position in self._inputs.items()}
        words: list[Any] = []
        for step in self._steps:
            step(generators, words)
        if words:
            fill(self._memory[: len(words)], np.array(words))
        return generators
