"""Call compiled functions of PyTensor so that what they hold and return is no memory that others share.

Program -> Direct(compiled) -> values
        -> called_on_host, in a mode that the function was given
        -> Absent, in the place of the communicator in slices without rows
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.link.utils import raise_with_op

from synk.comm import Communicator


class Direct:
    """A compiled function without what PyTensor does around its program, which takes longer than small ones.

    It must be linked by an `ArrayLinker`.
    """

    def __init__(self, compiled: Any, n_outputs: int):
        self.run = compiled.vm.run
        self._n_outputs = n_outputs
        storage = [container.storage for container in compiled.input_storage]
        self._updated = [(k, storage[at]) for k, at in compiled.maker.fgraph.update_mapping.items()]

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Return the outputs, once the updates are made; where it raises, nothing refers to the arguments."""
        try:
            values = self.run(arguments)
        except BaseException as error:
            break_cycle(error)
            raise
        for k, storage in self._updated:
            storage[0] = values[k]
        return values[: self._n_outputs]


def called_on_host(compiled: Any, to_host: Callable[[Any], Any], arguments: Sequence[Any]) -> Any:
    """Call a compiled function that computes with NumPy, whatever device the others compute on.

    Other functions, and collectives, may have left shared variables on a device: ``to_host`` brings them
    here.
    """
    shared = compiled.input_storage[len(arguments) :]
    for container in shared:
        container.storage[0] = to_host(container.storage[0])
    old = [container.storage[0] for container in shared if isinstance(container.storage[0], np.ndarray)]
    try:
        values = compiled(*arguments)
    except BaseException as error:
        break_cycle(error)
        for container in compiled.input_storage[: len(arguments)]:
            container.storage[0] = None
        raise

    def own(value: Any) -> Any:
        # Of a variable that it updates, PyTensor returns the old value as it is: perhaps in shared storage,
        # to which the next collective writes.
        lent = isinstance(value, np.ndarray) and any(np.may_share_memory(value, array) for array in old)
        return value.copy() if lent else value

    return [own(value) for value in values]


def break_cycle(error: BaseException) -> None:
    """Clear PyTensor's frame that refers to the error: else all frames of the call live on for long."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is raise_with_op.__code__:
            frame.clear()


class Absent:
    """The ranks, seen by one without rows: it adds nothing, even where its mean of nothing is NaN."""

    def __init__(self, ranks: Communicator):
        self._ranks = ranks

    def __deepcopy__(self, memo: Any) -> Absent:
        return self  # as communicators do

    @property
    def on_host(self) -> Absent:
        """Return the same for NumPy arrays."""
        return Absent(self._ranks.on_host)

    def all_reduce(self, array: Any, op: str) -> Any:
        if isinstance(array, np.ndarray | np.generic):
            return self._ranks.all_reduce(np.zeros_like(array), op)
        zeros = array.copy()  # on the device
        zeros.fill(0)
        return self._ranks.all_reduce(zeros, op)
