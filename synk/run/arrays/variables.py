"""Shared variables, which every rank has a copy of.

Share -> RankVariables.add ... value, assign, shared_arrays -> programs and collectives
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synk.compile.programs.text.buffers import is_writeable
from synk.compile.programs.text.transfer import is_on_device, is_on_host, overwritten
from synk.transport.comm import SharedArrays
from synk.values import messages
from synk.values.errors import SynkWarning
from synk.values.script_frames import stacklevel


class RankVariables:
    """One rank's shared variables, by identity.

    Programs leave values on their device; what goes to the script is read `on_host`, and what goes to other
    ranks `on_device`. ``to_host`` and ``from_host`` are those of the rank's `Device`.
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
        self._storage: dict[int, SharedArrays] = {}  # by identity, of this machine's ranks
        self._last_places: dict[int, weakref.ref[Any]] = {}  # by identity, on the device
        self.on_drop: Callable[[int], None] = lambda identity: None

    def add(self, message: messages.Share) -> None:
        """Make this rank's copy of a variable that travelled, or give the copy its new value."""
        value = message.value
        if isinstance(value, np.random.Generator) and not message.own:
            value = stream(value, self._rank)
        elif isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()  # updates write in place
        if message.identity in self._variables:
            self.assign(message.identity, value)  # programs hold on to the container
        else:
            self._variables[message.identity] = message.kind(
                type=message.type, value=value, strict=None, name=message.name
            )

    def adopt(self, identity: int, variable: SharedVariable) -> None:
        """Take the master's own variable: same storage, but without its default update."""
        self._variables[identity] = variable.clone()

    def drop(self, identity: int) -> None:
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
        """Return the value itself where it is on the host, else a copy."""
        return self._to_host(self.value(identity))

    def on_device(self, identity: int) -> Any:
        """Return the value itself, on the device, where it stays from now on; of arrays only.

        A copy there of vectors of whole numbers: they may be lengths, which programs read on the host.
        """
        storage, last = self._variables[identity].container.storage, self._last_places.get(identity)
        value = storage[0]
        if is_on_host(value):
            # Where it was there last, if a recording goes on to read it from there.
            value = self._from_host(overwritten(last and last(), value))
        if value.ndim > 1 or value.dtype.kind not in "iub":
            storage[0] = value
        if is_on_device(value):
            self._last_places[identity] = weakref.ref(value)
        return value

    def assign(self, identity: int, value: Any) -> None:
        """Put ``value`` in place of the old one: in an array that is there for it, if there is one."""
        storage = self._variables[identity].container.storage
        arrays = isinstance(value, np.ndarray) and isinstance(storage[0], np.ndarray)
        room = self._room(identity, value.dtype, value.shape) if arrays else None
        if room is not None:
            if room is not value:
                room[...] = value
            storage[0] = room
        else:
            # Values of the host are left there: programs may want them there, and take them over if not.
            storage[0] = value if is_on_host(value) else overwritten(storage[0], value)

    def fill(self, identity: int, shape: tuple[int, ...], write: Callable[[Any], Any]) -> None:
        """Put a value in place of the old one by ``write(array)``, without a copy in between."""
        storage = self._variables[identity].container.storage
        dtype = storage[0].dtype
        room = self._room(identity, dtype, shape)
        if room is None:
            room = np.empty(shape, dtype)
        write(room)
        storage[0] = room

    def _room(self, identity: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Return the array that a new value belongs into, if one fits: the stored before the present one."""
        value = self._variables[identity].container.storage[0]
        shared = self._storage.get(identity)
        for array in (value,) if shared is None else (shared.mine, value):
            fits = isinstance(array, np.ndarray) and (array.dtype, array.shape) == (dtype, shape)
            if fits and is_writeable(array):
                return array
        return None

    # --- shared memory ---------------------------------------------------------------------------

    def use_storage(self, identity: int, arrays: list[Any], place: int) -> None:
        """Keep a variable in shared memory from now on, in its rank's one of ``arrays``, by place.

        Its value is copied there when it next takes part in a collective, not at once: messages like
        this one are followed at any time, but only commands may write to what others see.
        """
        self._storage[identity] = SharedArrays(arrays, place)

    def shared_arrays(self, identity: int) -> SharedArrays | None:
        """Return the arrays in which the ranks of this machine hold the variable; None if it does not fit."""
        shared = self._storage.get(identity)
        if shared is None:
            return None
        storage, mine = self._variables[identity].container.storage, shared.mine
        value = storage[0]
        if value is not mine:
            if (value.dtype, value.shape) != (mine.dtype, mine.shape):
                return None
            # The storage is new, or set_value has put another array in its place.
            mine[...] = value
            storage[0] = mine
        return shared

    def storage(self, identity: int) -> SharedArrays | None:
        """Return the arrays that are there for this machine's ranks, whether values are in them or not."""
        return self._storage.get(identity)

    def take_stored(self, identity: int) -> None:
        """Take what is in this rank's shared storage as its value."""
        self._variables[identity].container.storage[0] = self._storage[identity].mine

    def leave_storage(self) -> None:
        """Copy all variables into this process's own memory again."""
        for identity in self._storage:
            storage = self._variables[identity].container.storage
            if not storage[0].flags.owndata:  # it is in shared memory, perhaps where it was before
                storage[0] = storage[0].copy()
        self._storage.clear()

    def leave_device(self) -> None:
        """Bring the values that programs left on their device to the host again."""
        try:
            for variable in self._variables.values():
                storage = variable.container.storage
                storage[0] = self._to_host(storage[0])
        except Exception as error:  # a GPU that failed gives nothing back, and the run ends all the same
            message = f"close: values of shared variables could not be read back: {error}"
            warnings.warn(message, SynkWarning, stacklevel=stacklevel())


def stream(generator: np.random.Generator, rank: int) -> np.random.Generator:
    """Return rank ``rank``'s own stream of random numbers, the same in every run.

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
