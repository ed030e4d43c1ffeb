"""Call compiled functions of PyTensor so that what they hold and return is no memory that others share.

Program -> Direct(compiled) -> values
        -> BoundFunction(call, arguments) -> values, again and again; Callback, which C calls
        -> called_on_host, in a mode that the function was given
        -> Absent, in the place of the communicator in slices without rows
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.link.utils import raise_with_op

from synk.compile.regions.callback import Callback, RegionCall, callback_of, only_region
from synk.compile.rewriting.rewritten import Linked
from synk.transport.comm import Communicator
from synk.transport.comm.communicator import Read, copies
from synk.values.reduction import identity


class Direct:
    """A linked graph without what PyTensor does around its program, which takes longer than small ones."""

    def __init__(self, linked: Linked):
        self.run, self._program = linked.run, linked.program
        self._n_outputs = linked.n_outputs
        self._updated = [(k, linked.cells[at]) for k, at in linked.updates.items()]

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

    def only_region(self, arguments: Sequence[Any]) -> RegionCall | None:
        """Return the call of a region in C that is all that a call does, if it is."""
        return None if self._updated else only_region(self._program, arguments)


class BoundFunction:
    """A call of a compiled function on arguments that stay the same arrays, whatever they hold."""

    def __init__(self, call: Callable[[Sequence[Any]], Sequence[Any]], arguments: Sequence[Any]):
        self._call, self._arguments = call, arguments

    def __call__(self) -> Sequence[Any]:
        return self._call(self._arguments)

    def callback(self, point: np.ndarray, otherwise: Callable[[], np.ndarray]) -> Callback | None:
        """Return a function in C that computes the one output, a value and its gradient at a point.

        None where the function is more than one region in C; see `Callback` for the parameters.
        """
        call = self._call.only_region(self._arguments) if isinstance(self._call, Direct) else None
        return callback_of(call, point, otherwise)


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
    """The ranks, seen by one without rows: it adds nothing, even where its mean of nothing is NaN.

    To reductions it brings the identity of their operation, to gatherings an array without rows; what it
    broadcasts is zeros. It receives what the others do.
    """

    def __init__(self, ranks: Communicator):
        self._ranks = ranks
        self.rank, self.n_ranks = ranks.rank, ranks.n_ranks

    def __deepcopy__(self, memo: Any) -> Absent:
        return self  # as communicators do

    @property
    def on_host(self) -> Absent:
        """Return the same for NumPy arrays."""
        return Absent(self._ranks.on_host)

    def all_reduce(self, array: Any, op: str) -> Any:
        return self._ranks.all_reduce(nothing_like(array, op), op)

    def reduce_scatter(self, array: Any, op: str) -> Any:
        return self._ranks.reduce_scatter(nothing_like(array, op), op)

    def all_gather(self, array: Any, read: Read = copies) -> Any:
        return self._ranks.all_gather(array[:0], read=read)

    def broadcast(self, array: Any, root: int = 0) -> Any:
        # What it computes from a row that stands in is no value of the call.
        return self._ranks.broadcast(nothing_like(array, "sum") if self.rank == root else array, root)


def nothing_like(array: Any, op: str) -> Any:
    """Return an array in the place of ``array``, on its side, that adds nothing to a reduction by ``op``.

    To an average, which counts all ranks alike, it adds zeros.
    """
    value: Any = identity("sum" if op == "avg" else op, np.empty((), array.dtype))
    nothing = np.array(array) if isinstance(array, np.generic) else array.copy()
    nothing.fill(value[()])
    return nothing
