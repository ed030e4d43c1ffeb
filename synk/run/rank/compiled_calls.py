"""Ways to call compiled functions of PyTensor; what they return shares no memory with shared variables.

RankProgram -> DirectCall: a program of synk's own linker -> values
            -> BoundFunction: again and again on the same arrays; its Callback is called from C
            -> called_on_host: a function compiled in a PyTensor mode that the script has chosen
            -> RowlessCommunicator: in the place of the communicator in slices for which a rank has no rows
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
from synk.values.operations import identity


class DirectCall:
    """Calls the program of a linked graph directly, and applies its updates.

    PyTensor's own `Function` does more around each call, which would take longer than a small program.
    """

    def __init__(self, linked: Linked):
        self.run, self._program = linked.run, linked.program
        self._n_outputs = linked.n_outputs
        self._updated = [(k, linked.cells[at]) for k, at in linked.updates.items()]

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Run the program, apply the updates, and return the outputs.

        If it raises, the exception keeps no reference to the arguments.
        """
        try:
            values = self.run(arguments)
        except BaseException as error:
            break_cycle(error)
            raise
        for k, storage in self._updated:
            storage[0] = values[k]
        return values[: self._n_outputs]

    def only_region(self, arguments: Sequence[Any]) -> RegionCall | None:
        """Return the call of the one C function that is all of the program, or None if it is more."""
        return None if self._updated else only_region(self._program, arguments)


class BoundFunction:
    """A compiled function with its arguments: calls run it on the same arrays, as these are then."""

    def __init__(self, call: Callable[[Sequence[Any]], Sequence[Any]], arguments: Sequence[Any]):
        self._call, self._arguments = call, arguments

    def __call__(self) -> Sequence[Any]:
        return self._call(self._arguments)

    def callback(self, point: np.ndarray, otherwise: Callable[[], np.ndarray]) -> Callback | None:
        """Return a C function that computes the single output: a value and its gradient at ``point``.

        None if the program is more than one region of C; the parameters are those of `Callback`.
        """
        call = self._call.only_region(self._arguments) if isinstance(self._call, DirectCall) else None
        return callback_of(call, point, otherwise)


def called_on_host(compiled: Any, to_host: Callable[[Any], Any], arguments: Sequence[Any]) -> Any:
    """Call a compiled function that computes with NumPy, in a run whose other functions use a device.

    Shared variables that other functions or collectives have left on the device are brought to the host by
    ``to_host`` first.
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
        # If an output is the old value of an updated variable, PyTensor returns that array itself. It may be
        # in shared memory, where the next collective overwrites it.
        lent = isinstance(value, np.ndarray) and any(np.may_share_memory(value, array) for array in old)
        return value.copy() if lent else value

    return [own(value) for value in values]


def break_cycle(error: BaseException) -> None:
    """Clear PyTensor's frame that refers to the error: the cycle would keep all frames of the call alive."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is raise_with_op.__code__:
            frame.clear()


class RowlessCommunicator:
    """The communicator of a rank that has no rows in a slice, so that it adds nothing to collectives.

    The rank computes on a row that stands in for its own, or its mean of no rows would be NaN, for example.
    In the place of what it has computed, reductions get the identity of their operation, gathers an array
    without rows, and broadcasts zeros. It receives the same results as the other ranks.
    """

    def __init__(self, ranks: Communicator):
        self._ranks = ranks
        self.rank, self.n_ranks = ranks.rank, ranks.n_ranks

    def __deepcopy__(self, memo: Any) -> RowlessCommunicator:
        return self  # a communicator is never copied with a graph

    @property
    def on_host(self) -> RowlessCommunicator:
        """Return the communicator for NumPy arrays, which adds nothing either."""
        return RowlessCommunicator(self._ranks.on_host)

    def all_reduce(self, array: Any, op: str) -> Any:
        return self._ranks.all_reduce(identity_like(array, op), op)

    def reduce_scatter(self, array: Any, op: str) -> Any:
        return self._ranks.reduce_scatter(identity_like(array, op), op)

    def all_gather(self, array: Any, read: Read = copies) -> Any:
        return self._ranks.all_gather(array[:0], read=read)

    def broadcast(self, array: Any, root: int = 0) -> Any:
        # What this rank has computed from the row that stands in must not reach the others.
        return self._ranks.broadcast(identity_like(array, "sum") if self.rank == root else array, root)


def identity_like(array: Any, op: str) -> Any:
    """Return an array like ``array``, on the same device, that adds nothing to a reduction by ``op``.

    For an average, which weights all ranks alike, it is zeros.
    """
    value: Any = identity("sum" if op == "avg" else op, np.empty((), array.dtype))
    nothing = np.array(array) if isinstance(array, np.generic) else array.copy()
    nothing.fill(value[()])
    return nothing
