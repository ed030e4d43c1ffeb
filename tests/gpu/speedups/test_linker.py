"""Recordings that are cut where a program tells what is final."""

from types import SimpleNamespace

import numpy as np

from synk.gpu.speedups import overlapping
from synk.gpu.speedups.linker import BetweenGraphs


class Told:
    """An announcer that notes what it is told."""

    def __init__(self):
        self.starts = []

    def finished(self, variable, array, start):
        self.starts.append(start)


def test_a_recording_is_cut_only_where_telling_matters(monkeypatch):
    monkeypatch.setattr(overlapping, "PART_BYTES", 80)  # ten numbers
    told, cuts = Told(), []
    recorder = SimpleNamespace(recording=True, cut=cuts.append)
    between = BetweenGraphs(told, recorder)
    array = np.zeros(30)
    for _ in range(2):  # as in another recording
        for start in (29, 22, 19, 12, 9, 0):
            between.finished("gradient", array, start)
        assert told.starts == []
        for action in cuts:
            action()
        assert told.starts == [19, 9, 0]
        told.starts.clear()
        cuts.clear()


def test_what_is_not_recorded_is_told_at_once():
    told = Told()
    between = BetweenGraphs(told, SimpleNamespace(recording=False))
    for start in (24, 19, 0):
        between.finished("gradient", np.zeros(25), start)
    assert told.starts == [24, 19, 0]
