"""Where tests of this folder run: each on the stand-in, to see that the test is sound, and on a GPU."""

import pytest

from support.cupy.array_modules import NEEDS_GPU, PLACES, import_arrays
from support.cupy.array_modules import cupy as cupy
from support.cupy.array_modules import device as device
from support.gpu.stage import Stage


@pytest.fixture(params=PLACES)
def stage(request):
    """Play acts on the stand-in and on a GPU."""
    return Stage(request.param)


@pytest.fixture(params=[NEEDS_GPU])
def gpu_stage(request):
    """Play acts on a GPU: what they look at the stand-in has not."""
    return Stage(request.param)


@pytest.fixture(scope="module")
def on_cores():
    """Return the results of an act on cores, in one process unless told; each is played once a module."""
    known = {}

    def play(act, n_ranks=1, **keywords):
        key = (act, n_ranks, *sorted(keywords.items()))
        if key not in known:
            known[key] = Stage("cores").play(act, n_ranks=n_ranks, **keywords)
        return known[key]

    return play


@pytest.fixture(params=PLACES)
def arrays(request, monkeypatch):
    """Return the array module of a device: the stand-in, or CuPy."""
    return import_arrays(request.param, monkeypatch)
