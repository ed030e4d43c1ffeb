"""The shared variables of one rank: each rank has its own copy of them.

Share -> RankVariables.add ... value, assign, shared_arrays -> programs and collectives
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synk.compile.programs.text.buffers import is_writeable
from synk.compile.programs.text.transfer import copied_into, is_on_device, is_on_host
from synk.transport.comm import SharedArrays
from synk.values import messages
from synk.values.script_frames import warn_the_script


class RankVariables:
    """One rank's shared variables, by identity.

    Programs leave values on their device. `on_host` reads a value for the script, `on_device` one for a
    collective. ``to_host`` and ``from_host`` are the methods of the rank's `Device`.
    """

    def __init__(
        self,
        rank: int,
        to_host: Callable[[Any], Any],
        from_host: Callable[[Any], Any],
    ):
        self._rank = rank
        self._to_host = to_host
        self._from_host = from_host
        self._variables: dict[int, SharedVariable] = {}
        self._storage: dict[int, SharedArrays] = {}  # by identity: the arrays of this machine's ranks
        self._last_places: dict[int, weakref.ref[Any]] = {}  # by identity: the last array on the device
        self.on_drop: Callable[[int], None] = lambda identity: None

    def add(self, message: messages.Share) -> None:
        """Make this rank's copy of a variable that the master sent, or assign the sent value to the copy."""
        value = message.value
        if isinstance(value, np.random.Generator) and not message.own:
            value = stream(value, self._rank)
        elif isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()  # updates write in place
        if message.identity in self._variables:
            self.assign(message.identity, value)  # the container must stay: compiled programs refer to it
        else:
            self._variables[message.identity] = message.kind(
                type=message.type, value=value, strict=None, name=message.name
            )

    def adopt(self, identity: int, variable: SharedVariable) -> None:
        """Use the script's own variable on rank 0: a clone with its container, without a default update."""
        self._variables[identity] = variable.clone()

    def drop(self, identity: int) -> None:
        """Drop this rank's copy of a variable."""
        self._variables.pop(identity, None)
        self._storage.pop(identity, None)
        self._last_places.pop(identity, None)
        self.on_drop(identity)

    def __getitem__(self, identity: int) -> SharedVariable:
        return self._variables[identity]

    def __contains__(self, identity: int) -> bool:
        return identity in self._variables

    def value(self, identity: int) -> Any:
        """Return the value itself, not a copy."""
        return self._variables[identity].container.storage[0]

    def on_host(self, identity: int) -> Any:
        """Return the value itself if it is on the host, else a copy on the host."""
        return self._to_host(self.value(identity))

    def on_device(self, identity: int) -> Any:
        """Return the value, which must be an array, on the device; it stays there from now on.

        Vectors and scalars of integers or booleans are copied there instead, and stay on the host as well:
        they may be lengths, which programs read on the host.
        """
        storage, last = self._variables[identity].container.storage, self._last_places.get(identity)
        value = storage[0]
        if is_on_host(value):
            # In the array that held it last: recorded launches may read it at that address.
            value = self._from_host(copied_into(last and last(), value))
        if value.ndim > 1 or value.dtype.kind not in "iub":
            storage[0] = value
        if is_on_device(value):
            self._last_places[identity] = weakref.ref(value)
        return value

    def assign(self, identity: int, value: Any) -> None:
        """Set the variable to ``value``: copied into the rank's present or stored array, if one fits."""
        storage = self._variables[identity].container.storage
        arrays = isinstance(value, np.ndarray) and isinstance(storage[0], np.ndarray)
        room = self._room(identity, value.dtype, value.shape) if arrays else None
        if room is not None:
            if room is not value:
                room[...] = value
            storage[0] = room
        else:
            # A value on the host stays there: programs that need it on the device bring it there themselves.
            storage[0] = value if is_on_host(value) else copied_into(storage[0], value)

    def fill(self, identity: int, shape: tuple[int, ...], write: Callable[[Any], Any]) -> None:
        """Set the variable by ``write(array)``, which writes the new value into an array of ``shape``."""
        storage = self._variables[identity].container.storage
        dtype = storage[0].dtype
        room = self._room(identity, dtype, shape)
        if room is None:
            room = np.empty(shape, dtype)
        write(room)
        storage[0] = room

    def _room(self, identity: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Return an array into which a new value can be written, or None.

        It is the array in shared memory, or else the present value, if this dtype and shape fit and it is
        writeable.
        """
        value = self._variables[identity].container.storage[0]
        shared = self._storage.get(identity)
        for array in (value,) if shared is None else (shared.mine, value):
            fits = isinstance(array, np.ndarray) and (array.dtype, array.shape) == (dtype, shape)
            if fits and is_writeable(array):
                return array
        return None

    # --- shared memory ---------------------------------------------------------------------------

    def use_storage(self, identity: int, arrays: list[Any], place: int) -> None:
        """Store a variable in shared memory from now on: this rank's array is ``arrays[place]``.

        The value is copied there at the variable's next collective, not at once: this message may come at any
        time, but only commands may write to memory that other ranks read.
        """
        self._storage[identity] = SharedArrays(arrays, place)

    def shared_arrays(self, identity: int) -> SharedArrays | None:
        """Return the arrays of all ranks of this machine, once this rank's value is in its own one.

        None if the variable is not stored in shared memory, or the value has another dtype or shape.
        """
        shared = self._storage.get(identity)
        if shared is None:
            return None
        storage, mine = self._variables[identity].container.storage, shared.mine
        value = storage[0]
        if value is not mine:
            if (value.dtype, value.shape) != (mine.dtype, mine.shape):
                return None
            # The array in shared memory is new, or set_value has replaced the value.
            mine[...] = value
            storage[0] = mine
        return shared

    def storage(self, identity: int) -> SharedArrays | None:
        """Return the shared arrays of this machine's ranks, or None; they may not hold the values yet."""
        return self._storage.get(identity)

    def take_stored(self, identity: int) -> None:
        """Make this rank's array in shared memory, which somebody else has written, the variable's value."""
        self._variables[identity].container.storage[0] = self._storage[identity].mine

    def leave_storage(self, identities: Iterable[int] | None = None) -> None:
        """Copy variables, by default all, into this process's own memory again."""
        for identity in list(self._storage if identities is None else identities):
            storage = self._variables[identity].container.storage
            if not storage[0].flags.owndata:  # it is in shared memory, perhaps in an array of former storage
                storage[0] = storage[0].copy()
            self._storage.pop(identity, None)

    def leave_device(self) -> None:
        """Bring all values that programs left on the device to the host."""
        try:
            for variable in self._variables.values():
                storage = variable.container.storage
                storage[0] = self._to_host(storage[0])
        except Exception as error:  # nothing can be read from a failed device, but the run must still end
            message = f"close: values of shared variables could not be read back: {error}"
            warn_the_script(message)


def stream(generator: np.random.Generator, rank: int) -> np.random.Generator:
    """Return the stream of random numbers that a rank makes from rank 0's generator, the same in every run.

    Rank 0 keeps the generator's state; each further rank starts one jump (2**127 draws for
    PCG64) beyond the one before.
    """
    bits: Any = generator.bit_generator
    if rank == 0:
        return generator
    if hasattr(bits, "jumped"):
        return np.random.Generator(bits.jumped(rank))
    entropy = generator.bit_generator.random_raw(4)  # SFC64 cannot jump
    return np.random.Generator(type(bits)(np.random.SeedSequence([rank, *map(int, entropy)])))
