"""A GPU whose programs are recorded: `CudaDevice` with CUDA graphs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from synk.device.cuda import CudaDevice
from synk.gpu_speedups.graphs import Graphs
from synk.gpu_speedups.linker import RecordingLinker


class RecordingDevice(CudaDevice):
    """A GPU on which programs that are called with the same shapes are recorded, and launched as one."""

    def _take(self, cupy: Any, undo: ExitStack) -> None:
        super()._take(cupy, undo)
        self._graphs = Graphs(cupy, self.stream, self.memory)
        self._launching = self._graphs.lock
        undo.callback(self._graphs.close)

    def _linker(self, **options: Any) -> RecordingLinker:
        return RecordingLinker(self._graphs, self.xp, **options)
