"""CUDA graphs: launches of one GPU recorded, and launched again together.

    Graphs.record(run) -> begin capture, run (cut: end and begin again), end -> (what run returned, replay)

What is recorded keeps its addresses, so it allocates from a pool that serves recordings alone; all of
them share it, as none has anything there while another runs. *Unrun* on GPUs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from synk.compile.dispatch.cublas import multiplied_by
from synk.gpu_speedups.cublas_handle import CublasHandle


class Graphs:
    """Record launches in the stream of a GPU, as `captured` asks for.

    Parameters
    ----------
    cupy : module
    stream : cupy.cuda.Stream
        The one in which programs launch.
    memory : float
        The fraction of the GPU's memory that recordings may take.

    Attributes
    ----------
    lock : Lock
        Held while launches of the stream are recorded: other threads launch nothing in it.
    recording : bool
        Whether the program that runs now is recorded; for its own thread.
    """

    def __init__(self, cupy: Any, stream: Any, memory: float = 1.0):
        self._cupy = cupy
        self._stream = stream
        self._kept: list[Any] = []
        self._pool = cupy.cuda.MemoryPool(self._allocate)
        self._pool.set_limit(fraction=memory)
        self.lock = threading.Lock()
        self._parts: list[Callable[[], None]] | None = None  # of the present recording
        self._cublas: CublasHandle | None = None

    @property
    def recording(self) -> bool:
        return self._parts is not None

    def warm(self, run: Callable[[], Any]) -> Any:
        """Return ``run()``, which leaves its memory in the pool of recordings."""
        with self._cupy.cuda.using_allocator(self._pool.malloc):
            return run()

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Return ``run()``, none of whose launches happen, and what makes all of them happen.

        Raises
        ------
        Exception
            What ``run`` raised, or CUDA where a call cannot be recorded; nothing has happened then.
        """
        with self.lock, self._cupy.cuda.using_allocator(self._pool.malloc):
            if self._cublas is None:
                self._cublas = CublasHandle(self._cupy)
            parts = self._parts = []
            self._stream.begin_capture()
            try:
                self._cublas.begin()
                with multiplied_by(self._cublas):
                    values = run()
            except BaseException:
                with suppress(Exception):  # the recording was broken off: CUDA says so again
                    self._stream.end_capture()
                raise
            finally:
                self._parts = None
            parts.append(self._end())
        return values, parts[0] if len(parts) == 1 else partial(_replay, parts)

    def cut(self, action: Callable[[], None]) -> None:
        """Run ``action`` in every replay, after everything that has been recorded so far."""
        assert self._parts is not None, "only what is recorded can be cut"
        self._parts += [self._end(), action]
        self._stream.begin_capture()

    def _end(self) -> Callable[[], None]:
        return partial(self._stream.end_capture().launch, self._stream)

    def close(self) -> None:
        """Give back what no recording holds any more."""
        self._cublas = None  # CUDA frees it with the process
        self._pool.free_all_blocks()
        self._kept.clear()

    def _allocate(self, n_bytes: int) -> Any:
        """Return memory of CUDA, for the pool.

        A pool that is full frees all blocks that nobody has. Recordings write to theirs in the next replay.
        """
        memory = self._cupy.cuda.Memory(n_bytes)
        self._kept.append(memory)
        return self._cupy.cuda.MemoryPointer(memory, 0)


def _replay(parts: Sequence[Callable[[], None]]) -> None:
    for part in parts:
        part()
