"""What all regions call is compiled by a worker that waits for its first command."""

import time

import numpy as np
import pytensor.tensor as pt
import pytest

import synk
from synk.compile import ArrayLinker, array_mode
from synk.compile.native.compiler import Compiler, find_compiler
from synk.compile.native.libraries import Libraries
from synk.compile.native.store import Store
from synk.compile.regions import functions, native_function
from synk.compile.regions.native_function import NativeCompilation

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


@pytest.fixture
def compiled_by(tmp_path, monkeypatch):
    """Return a function that gives this process, and those forked of it, a compiler and an empty store."""

    def use(*command):
        store = Store(tmp_path / "store")
        made = NativeCompilation(Libraries(Compiler(command), store))
        for module in (native_function, functions):
            monkeypatch.setattr(module, "native_compilation", lambda: made)
        return store

    return use


def exponential():
    """Return a function of rows that runs as a region."""
    x = pt.dvector("x")
    return synk.function([x], pt.exp(x) + x, mode=array_mode(ArrayLinker(native=True)))


def test_a_worker_compiles_it_before_the_first_function_is_built(ranks, compiled_by):
    store = compiled_by(*find_compiler().command)
    ranks(2, device="cpu")
    latest = time.monotonic() + 60
    while not store.folder.is_dir() or not store.look()[0]:
        assert time.monotonic() < latest
        time.sleep(0.02)
    assert len(store.look()[0]) == 1
    exponential()(np.arange(3.0))
    assert len(store.look()[0]) == 2  # and the region


@pytest.mark.filterwarnings("ignore:(?s).*Graphs run in Python")
def test_where_it_does_not_compile_functions_run_in_python(ranks, compiled_by):
    compiled_by("false")
    ranks(2, device="cpu")
    x = np.arange(3.0)
    np.testing.assert_allclose(exponential()(x), np.exp(x) + x)
