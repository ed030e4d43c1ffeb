import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import array_mode


def test_filled_arrays(compare):
    x, n = pt.vector("x"), pt.lscalar("n")
    outputs = [
        pt.zeros((n, 2)),
        pt.ones(n),
        pt.alloc(x, n, 3),
        pt.full((n,), x[0]),
        pt.zeros_like(x),
        pt.alloc(x[0]),
    ]
    compare([x, n], outputs, [np.arange(3, dtype=x.dtype), np.asarray(4)])


def test_fill_by_undeclared_broadcasting_is_refused():
    x = pt.vector("x")
    function = pytensor.function([x], pt.alloc(x, 4, 3), mode=array_mode())
    with pytest.raises(ValueError, match="specify_broadcastable"):
        function(np.ones(1, x.dtype))


def test_uninitialised_array_has_its_shape():
    n = pt.lscalar("n")
    result = pytensor.function([n], pt.empty((n, 2), dtype="int8"), mode=array_mode())(3)
    assert (result.shape, result.dtype) == ((3, 2), "int8")


def test_vectors_ranges_and_diagonals(compare):
    x, n = pt.scalar("x", dtype="float32"), pt.lscalar("n")
    outputs = [
        pt.stack([x, x + 1]),
        pt.as_tensor([n, 2, n]),
        pt.arange(n),
        pt.arange(1, n, 2),
        pt.arange(n, 0, -1),
    ]
    outputs += [pt.arange(n, dtype="float32"), pt.eye(n), pt.eye(n, 3, 1, dtype="int8")]
    compare([x, n], outputs, [np.asarray(1.5, "float32"), np.asarray(5)])


@pytest.mark.parametrize("length", [-1, 0, 1, 6])
def test_triangular_window(compare, length):
    n = pt.lscalar("n")
    compare([n], [pt.bartlett(n)], [np.asarray(length)])


def test_triangles(compare):
    x, n = pt.fmatrix("x"), pt.lscalar("n")
    outputs = [pt.tri(n, 4, 1), pt.tril(x), pt.triu(x, 1), pt.diag(x[0]), pt.tri(n)]
    compare([x, n], outputs, [np.arange(12, dtype="float32").reshape(3, 4), np.asarray(3)])
