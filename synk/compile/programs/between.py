"""What a recorded program tells while it runs: there a recording is cut, and it tells between two graphs.

    program -> finished -> due? -> cut: graph, finished, graph, ...

Python runs only when a program is recorded, so what an announcer is to learn at every replay has to stand
between graphs. Each cut costs one more launch; where telling changes nothing, there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pytensor.graph.basic import Variable

from synk.compile.passes.finish import Announcer
from synk.compile.programs.captured import Recorder


class BetweenGraphs:
    """The announcer of a program that is recorded.

    Parameters
    ----------
    announcer : Announcer
        Who is told, in calls that are not recorded and in replays.
    recorder : Recorder
    """

    def __init__(self, announcer: Announcer, recorder: Recorder):
        self._announcer = announcer
        self._recorder = recorder
        self._starts: dict[Variable, int] = {}  # what was told last

    def expect(self, variable: Variable, shape: tuple[int, ...], dtype: str) -> None:
        self._announcer.expect(variable, shape, dtype)

    def told(self) -> Mapping[Any, Any]:
        return self._announcer.told()

    def due(self, array: Any, start: int, stop: int) -> bool:
        return self._announcer.due(array, start, stop)

    def finished(self, variable: Variable, array: Any, start: int) -> None:
        if not self._recorder.recording:
            self._announcer.finished(variable, array, start)
            return
        stop = self._starts.get(variable, 0)
        if stop <= start:  # of an earlier recording
            stop = array.size
        if self._announcer.due(array, start, stop):
            self._starts[variable] = start
            self._recorder.cut(partial(self._announcer.finished, variable, array, start))
