"""CUDA graphs: launches of one GPU recorded, and launched again together.

    Graphs.record(run) -> begin capture, run, end capture -> (what run returned, replay)

What is recorded keeps its addresses, so it allocates from a pool that serves recordings alone; all of
them share it, as none has anything there while another runs. *Unrun* on GPUs.

Imports ``cublas_library`` of ``compile``; CuPy is passed in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from synk.compile.dispatch import cublas_library


class Graphs:
    """Records launches in the stream of a GPU, as `synk.compile.programs.captured` asks for.

    Parameters
    ----------
    cupy : module
    stream : cupy.cuda.Stream
        The one in which programs launch.
    memory : float
        The fraction of the GPU's memory that recordings may take.

    Attributes
    ----------
    recording : Lock
        Held while launches of the stream are recorded: other threads launch nothing in it.
    """

    def __init__(self, cupy: Any, stream: Any, memory: float = 1.0):
        self._cupy = cupy
        self._stream = stream
        self._kept: list[Any] = []
        self._pool = cupy.cuda.MemoryPool(self._allocate)
        self._pool.set_limit(fraction=memory)
        self.recording = threading.Lock()

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
        with self.recording, self._cupy.cuda.using_allocator(self._pool.malloc):
            cublas_library.prepare(self._cupy)
            self._stream.begin_capture()
            try:
                with cublas_library.recording():
                    values = run()
            except BaseException:
                with suppress(Exception):  # the recording was broken off: CUDA says so again
                    self._stream.end_capture()
                raise
            graph = self._stream.end_capture()
        return values, partial(graph.launch, self._stream)

    def close(self) -> None:
        """Give back what no recording holds any more."""
        cublas_library.forget()
        self._pool.free_all_blocks()
        self._kept.clear()

    def _allocate(self, n_bytes: int) -> Any:
        """Return memory of CUDA, for the pool.

        A pool that is full frees all blocks that nobody has. Recordings write to theirs in the next replay.
        """
        memory = self._cupy.cuda.Memory(n_bytes)
        self._kept.append(memory)
        return self._cupy.cuda.MemoryPointer(memory, 0)
