"""Ops that move numbers, and do not compute, in regions."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.shape import SpecifyShape

from synk.compile import ArrayLinker, array_mode
from synk.compile.regions.region import Region


def test_a_region_demands_the_shape_that_is_specified(gave_up):
    x, rows = pt.matrix("x"), pt.lscalar("rows")
    doubled = pt.specify_shape(x * 2, (None, 3))
    known = pt.specify_shape(doubled.cumsum(0), (rows, None))
    function = pytensor.function(
        [x, rows],
        known.cumsum(1),
        mode=array_mode(ArrayLinker(native=True)).excluding("local_lift_specify_shape"),
    )
    (region,) = [node for node in function.maker.fgraph.toposort() if isinstance(node.op, Region)]
    assert sum(isinstance(node.op, SpecifyShape) for node in region.op.fgraph.toposort()) == 2
    value = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(function(value, 2), (2 * value).cumsum(0).cumsum(1))
    assert not gave_up
    with pytest.raises(AssertionError, match=r"got shape \(2, 3\), expected \(3, None\)"):
        function(value, 3)
    with pytest.raises(AssertionError, match=r"got shape \(3, 2\), expected \(None, 3\)"):
        function(value.reshape(3, 2), 3)
