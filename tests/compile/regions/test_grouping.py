"""Nodes with C texts become regions of a limited length, unless that is turned off."""

import numpy as np
import pytensor
import pytensor.tensor as pt

from support.regions.compiled import compiled, regions_of
from synk.compile import ArrayLinker, array_mode
from synk.compile.regions import grouping


def test_a_long_graph_has_several_regions(monkeypatch):
    monkeypatch.setattr(grouping, "LONGEST", 16)
    x = pt.dvector("x")
    y = x
    for _ in range(20):
        y = pt.set_subtensor((y * 1.01)[0], y.sum())
    function = compiled([x], y)
    assert 2 <= len(regions_of(function)) <= 6
    plain = pytensor.function([x], y, mode=array_mode(ArrayLinker(native=False)))
    np.testing.assert_allclose(function(np.ones(3) * 1e-3), plain(np.ones(3) * 1e-3), rtol=1e-9)


def test_native_false_has_no_regions():
    x = pt.dmatrix("x")
    function = pytensor.function([x], pt.exp(x * 2).sum(), mode=array_mode(ArrayLinker(native=False)))
    assert not regions_of(function)
