"""The stand-in must refuse what a GPU would do silently, or not at all."""

from importlib import import_module

import numpy as np
import pytest

from support.cupy import stand_in as xp
from support.cupy.array_modules import import_arrays
from support.cupy.stand_in import SilentTransfer


@pytest.fixture
def array():
    xp.counts.reset()
    result = xp.asarray(np.arange(3.0))
    xp.counts.reset()
    return result


@pytest.mark.parametrize(
    "way",
    [
        np.asarray,
        np.array,
        np.exp,
        np.sum,
        np.concatenate,
        memoryview,
        list,
        lambda x: int(x[0]),
        lambda x: float(x[0]),
        lambda x: complex(x[0]),
        lambda x: bool((x > 0).all()),
        lambda x: [1, 2, 3][x[1]],
        lambda x: range(x[1]),
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.tobytes(),
        lambda x: 1.0 in x,
        lambda x: np.ones(3) + x,
        lambda x: np.add(x, x),
        lambda x: xp.zeros(x[1]),
        lambda x: x.reshape(x[1:2]),
    ],
)
def test_no_way_to_the_host_is_silent(array, way):
    with pytest.raises(TypeError):
        way(array)
    assert xp.counts.downloads == 0


@pytest.mark.parametrize(
    "way",
    [
        lambda x, host: x + host,
        lambda x, host: xp.add(x, host),
        lambda x, host: xp.add(x, x, out=host),
        lambda x, host: xp.dot(x, host),
        lambda x, host: xp.concatenate([x, host]),
        lambda x, host: xp.where(x > 0, x, host),
        lambda x, host: x[host.astype(int)],
        lambda x, host: x.__setitem__(slice(None), host),
        lambda x, host: x.dot(host),
        lambda x, host: xp.linalg.norm(host),
        lambda x, host: xp.exp(np.asarray(2.0)),
    ],
)
def test_no_way_to_the_device_is_silent(array, way):
    with pytest.raises(SilentTransfer):
        way(array, np.ones(3))
    assert xp.counts.uploads == 0


def test_launches_are_counted_and_views_are_free(array):
    matrix = xp.ones((2, 3))
    matrix.T, matrix.reshape(6), matrix[0], matrix[:, None], xp.split(matrix, [1])
    assert xp.counts.launches == 1
    _ = xp.exp(matrix) + 1, matrix.sum(axis=0), matrix @ array
    assert xp.counts.launches == 5
    assert xp.counts.uploads == xp.counts.downloads == 0


@pytest.mark.parametrize("name", ["block", "insert", "vecdot", "errstate", "nditer"])
def test_what_cupy_lacks_is_missing(name):
    assert hasattr(np, name)
    with pytest.raises(AttributeError, match=f"no twin of numpy.{name}"):
        getattr(xp, name)


@pytest.mark.parametrize(
    ("way", "error"),
    [
        (lambda x: xp.where(False, x, x), AttributeError),
        (lambda x: xp.repeat(2.0, 3), AttributeError),
        (lambda x: xp.broadcast_to(np.float64(2), (3,)), TypeError),
        (lambda x: import_module("cupyx.scipy.special").polygamma(1, x), AttributeError),
    ],
)
def test_numbers_are_no_arrays(array, monkeypatch, way, error):
    import_arrays("stand-in", monkeypatch)
    with pytest.raises(error):
        way(array)


@pytest.mark.parametrize(
    ("way", "downloads"),
    [
        (lambda x, mask: x[mask], 1),
        (lambda x, mask: xp.nonzero(x), 1),
        (lambda x, mask: x.__setitem__(mask, 1.0), 1),
        (lambda x, mask: xp.repeat(x, [1, 0, 2]), 1),
        (lambda x, mask: xp.choose(mask.astype(int), [x, x]), 1),
        (lambda x, mask: xp.unravel_index(mask.astype(int), (2, 2)), 1),
        (lambda x, mask: xp.linalg.pinv(x[None]), 1),
        (lambda x, mask: xp.repeat(x, 2), 0),
        (lambda x, mask: xp.choose(mask.astype(int), [x, x], mode="clip"), 0),
        (lambda x, mask: xp.linalg.inv(xp.eye(2)), 0),
    ],
)
def test_what_waits_for_the_device_is_counted(array, way, downloads):
    way(array, array > 0)
    assert xp.counts.downloads == downloads
