"""The device and the linker that record programs in CUDA graphs.

RecordingDevice -> RecordingLinker -> Captured: the program, whose recorded launches are repeated
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synk.compile import ArrayLinker
from synk.compile.programs.text.program import Program
from synk.compile.programs.text.transfer import copied_into
from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.speedups.captured import Captured, obstacle
from synk.gpu.speedups.graphs import Graphs


class RecordingDevice(CudaDevice):
    """A GPU that records the launches of a program when it is called with the same shapes again."""

    def _take(self, cupy: Any, undo: ExitStack) -> None:
        super()._take(cupy, undo)
        self._graphs = Graphs(cupy, self.stream, self.memory)
        self._launching = self._graphs.lock
        undo.callback(self._graphs.close)

    def _linker(self, **options: Any) -> RecordingLinker:
        return RecordingLinker(self._graphs, self.xp, **options)


class RecordingLinker(ArrayLinker):
    """Link a graph to a program that is recorded; parameters after the first are those of `ArrayLinker`.

    A program whose nodes are observed, or that announces final gradients while it runs, is not recorded.
    """

    def __init__(self, graphs: Graphs, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._graphs = graphs

    def _link_program(self, fgraph, order, *storage) -> tuple[Program, Callable]:
        if self.observe is not None or self.announcer is not None:
            return super()._link_program(fgraph, order, *storage)
        program = self._emit(fgraph, order, inputs_on_host=(), outputs_on_host=(), announcer=None)
        reason = obstacle(program, fgraph)
        if reason is None:
            return program, self._captured(fgraph, program)
        if self.host_ops != "allow":
            warnings.warn(f"a function is not captured in a CUDA graph: {reason}", stacklevel=2)
        return super()._link_program(fgraph, order, *storage)

    def _captured(self, fgraph, program) -> Captured:
        return Captured(
            program,
            self.xp,
            self._graphs,
            shared=[k for k, variable in enumerate(fgraph.inputs) if isinstance(variable, SharedVariable)],
            unread=[k for k, variable in enumerate(fgraph.inputs) if not fgraph.clients[variable]],
            updates=fgraph.update_mapping or {},
            fetched=self._outputs_on_host(fgraph),
        )

    def _copy_to_device(self, function: Callable, k: int, value: Any) -> Any:
        """Write a value that the script has set into the memory that a recording reads."""
        place = function.place(k) if isinstance(function, Captured) else None
        return super()._copy_to_device(function, k, copied_into(place, value))
