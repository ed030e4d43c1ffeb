"""Record a program's launches once, and then launch them together: a CUDA graph.

    inputs -> shapes, and values read on the host -> recording -> copy inputs -> replay -> results

Each launch costs the host some microseconds, which is most of the time of a small network. A recording
repeats the same kernels on the same addresses, so

- the inputs of a call are copied to arrays that belong to the recording, the slots;
- shared variables are read in their memory, and new values are written there, also those that the script sets
  (`Captured.place`);
- a value that Python reads on the host is part of the recording, like a shape: another one needs another
  recording;
- random generators advance on the host; their words are written to memory before each replay (`draws`).

*Unrun* on GPUs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.type import DenseTensorType

from synk.compile.programs.text.program import Program
from synk.compile.programs.text.transfer import fill, is_on_device, to_host
from synk.gpu.speedups.draws import Draws, LaterGenerator
from synk.gpu.speedups.graphs import Graphs

WARM_UP = 2  # calls before a recording, in which kernels are compiled and libraries choose theirs
MOST = 8  # recordings of a program, moves of its shared variables included; then it is recorded no more
MOST_KEYS = 1024  # keys whose calls are counted: a number that the host reads may differ in each call
LARGEST = 1024  # bytes of a host array that may be part of a key


class Recording(NamedTuple):
    """The recorded launches of a program, and the arrays that they read and write."""

    slots: Mapping[int, Any]  # arrays that hold inputs of a call
    places: Mapping[int, Any]  # arrays of shared variables
    draws: Draws
    values: Sequence[Any]
    replay: Callable[[], None]


class Captured:
    """A program whose launches are recorded once it has been called a few times with the same shapes.

    It is called like the program's function.

    Parameters
    ----------
    program : Program
        Its inputs may be arrays on the device, and its results stay there.
    xp : module
    graphs : Graphs
        Records the launches.
    shared : collection of int
        Inputs that are shared variables.
    unread : collection of int
        Inputs that no node of the program reads.
    updates : mapping of int to int
        Maps outputs to the inputs, shared variables, whose new values they are.
    fetched : collection of int
        Outputs to return on the host.
    """

    def __init__(
        self,
        program: Program,
        xp: ModuleType,
        graphs: Graphs,
        *,
        shared: Collection[int],
        unread: Collection[int],
        updates: Mapping[int, int],
        fetched: Collection[int],
    ):
        self._run = program.function
        self._xp = xp
        self._graphs = graphs
        self._updates = dict(updates)
        self._fetched = frozenset(fetched)
        on_device = frozenset(program.device_inputs)
        self._places = on_device & frozenset(shared)
        self._slots = on_device - self._places
        self._passed_over = self._places | frozenset(unread)
        self._calls: dict[Any, int] = {}
        self._recordings: dict[Any, Recording] = {}
        self._last_places: Mapping[int, Any] = {}  # of the last recording
        self._made = 0

    def place(self, k: int) -> Any:
        """Return the array from which a recording reads a shared variable, None if there is none.

        A value that the script sets needs no new recording if it is written to this array.
        """
        return self._last_places.get(k)

    def __call__(self, *inputs: Any) -> list[Any]:
        key = self._key(inputs)
        recording = self._recordings.get(key)
        if recording is None or not self._holds(recording, inputs):
            if key is None or self._made > MOST:
                return self._plain(inputs, calls=0)
            if len(self._calls) == MOST_KEYS:
                self._calls.clear()
            calls = self._calls.get(key, 0) + 1
            if calls <= WARM_UP:
                values = self._plain(inputs, calls)
                self._calls[key] = calls  # only after a call that succeeded: no other is worth a recording
                return values
            recording = self._record(key, inputs)
            if recording is None:
                return self._plain(inputs, calls)
        for k, slot in recording.slots.items():
            fill(slot, inputs[k])
        generators = recording.draws.advance(inputs)
        recording.replay()
        return [
            generators[value.number] if isinstance(value, LaterGenerator) else self._result(k, value)
            for k, value in enumerate(recording.values)
        ]

    # --- which recording ---------------------------------------------------------------------------

    def _key(self, inputs: Sequence[Any]) -> Any:
        """Return the key of the recording for these inputs, or None where an input cannot be compared."""
        key: list[Any] = []
        for k, value in enumerate(inputs):
            if k in self._passed_over:
                continue
            if k in self._slots:
                key.append((value.shape, value.dtype.str))
            elif isinstance(value, np.ndarray | np.generic) and value.nbytes <= LARGEST:
                key.append((value.shape, value.dtype.str, value.tobytes()))
            elif isinstance(value, np.ndarray | np.generic):
                return None
        return tuple(key)

    def _holds(self, recording: Recording, inputs: Sequence[Any]) -> bool:
        return all(inputs[k] is place for k, place in recording.places.items())

    # --- how it runs -------------------------------------------------------------------------------

    def _plain(self, inputs: Sequence[Any], calls: int) -> list[Any]:
        def run() -> Any:
            return self._run(*inputs)

        if calls != WARM_UP:
            return [self._home(k, value) for k, value in enumerate(run())]
        homes = [self._home(k, value) for k, value in enumerate(self._graphs.warm(run))]
        # The results lie in the pool of recordings, which will write over them; so they are copied.
        return [
            value if not is_on_device(value) or any(value is array for array in inputs) else value.copy()
            for value in homes
        ]

    def _record(self, key: Any, inputs: Sequence[Any]) -> Recording | None:
        """Return a new recording; None if recording fails, and then it is never tried again."""
        self._recordings.pop(key, None)
        self._made += 1
        if self._made > MOST:
            self._give_up(
                f"it was recorded {MOST} times, since shapes, values that are read on the host, or the "
                "places of shared variables keep changing"
            )
            return None
        slots = {k: self._xp.empty(inputs[k].shape, inputs[k].dtype) for k in self._slots}
        for k, slot in slots.items():
            fill(slot, inputs[k])
        places = {k: inputs[k] for k in self._places}
        draws = Draws(self._xp)
        arguments = [
            draws.stand_in(k) if isinstance(value, np.random.Generator) else slots.get(k, value)
            for k, value in enumerate(inputs)
        ]
        try:
            values, replay = self._graphs.record(lambda: self._settled(arguments))
        except Exception as error:
            self._made = MOST + 1
            self._give_up(f"{type(error).__name__}: {error}")
            return None
        self._last_places = places
        recording = self._recordings[key] = Recording(slots, places, draws, values, replay)
        return recording

    def _give_up(self, reason: str) -> None:
        self._recordings.clear()
        self._last_places = {}
        warnings.warn(f"a function is no longer captured in a CUDA graph: {reason}", stacklevel=2)

    def _settled(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the program, and copy new values of shared variables into the memory of the old ones."""
        values = list(self._run(*arguments))
        moved = {}
        for k, source in self._updates.items():
            target, value = arguments[source], values[k]
            if source not in self._places or value is target:
                continue
            if (value.shape, value.dtype) != (target.shape, target.dtype):
                shapes = f"{list(target.shape)} takes a value of shape {list(value.shape)}"
                raise ValueError(f"a shared variable of shape {shapes}")
            moved[k] = value.copy()  # it may be a view of a variable that is overwritten below
        for k, value in moved.items():
            target = arguments[self._updates[k]]
            target[...] = value
            values[k] = target
        return values

    # --- what is returned ------------------------------------------------------------------------------

    def _home(self, k: int, value: Any) -> Any:
        return to_host(value, self._xp) if k in self._fetched and is_on_device(value) else value

    def _result(self, k: int, value: Any) -> Any:
        """Return an output in memory that the next replay does not overwrite."""
        if k in self._fetched and is_on_device(value):
            return to_host(value, self._xp)
        return value if k in self._updates and is_on_device(value) else value.copy()


def obstacle(program: Program, fgraph: FunctionGraph) -> str | None:
    """Return why a program cannot be recorded, or None if it can.

    A value that Python computes or reads in the middle of a program would stay in the recording as it was
    then.
    """
    if program.host_nodes:
        names = ", ".join(sorted({str(node.op) for node in program.host_nodes}))
        return f"{names} compute on the host"
    if program.transfers.uploads or program.transfers.downloads:
        return f"arrays cross between host and device in the middle of it: {program.transfers}"
    for variable in fgraph.inputs:
        if not isinstance(variable.type, DenseTensorType | RandomGeneratorType) and fgraph.clients[variable]:
            return f"it reads {variable}, which is no array"
    return None
