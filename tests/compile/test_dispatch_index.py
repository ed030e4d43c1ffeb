import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import array_mode


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_ravel(compare, order, mode):
    i, j, shape = pt.lvector("i"), pt.tensor("j", dtype="int8", shape=(None,)), pt.lvector("shape")
    outputs = [pt.ravel_multi_index((i, j), shape, mode=mode, order=order)]
    outputs += [pt.ravel_multi_index((i[0], j[1]), (4, 5), mode=mode, order=order)]
    high = 3 if mode == "raise" else 9
    values = [np.array([0, high, 2]), np.array([4, 1, 0], "int8"), np.array([4, 5])]
    compare([i, j, shape], outputs, values)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 3, 2)])
def test_unravel(compare, order, shape):
    places, matrix = pt.ivector("places"), pt.lmatrix("matrix")
    outputs = [*pt.unravel_index(places, shape, order=order), *pt.unravel_index(matrix, shape, order=order)]
    outputs += pt.unravel_index(places[1], shape, order=order)
    compare([places, matrix], outputs, [np.array([0, 11, 5], "int32"), np.arange(6).reshape(2, 3)])


def test_places_outside_are_refused():
    i = pt.lvector("i")
    function = pytensor.function([i], pt.ravel_multi_index((i, i), (3, 3)), mode=array_mode())
    with pytest.raises(ValueError, match="invalid entry"):
        function(np.array([3]))
    function = pytensor.function([i], pt.unravel_index(i, (3, 3)), mode=array_mode())
    with pytest.raises(ValueError, match="out of bounds"):
        function(np.array([9]))
