"""Ranks agree whether graphs run as C; what all regions call is compiled before the first command."""

import os

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.waiting import wait_until
from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.native.compiler import Compiler, find_compiler
from synk.compile.native.libraries import Libraries
from synk.compile.native.store import Store
from synk.compile.regions import functions, native_function
from synk.compile.regions.native_function import NativeCompilation, agree, gives_up

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


class OnOneRank(Compiler):
    """A compiler for which all processes but one have no memory."""

    process = 0

    def compile(self, sources):
        works = os.getpid() == self.process or not self.process
        return super().compile(sources) if works else Compiler(("false",)).compile(sources)


class StoreOfEach(Store):
    """A store for each process, so that none finds what another has made."""

    @property
    def folder(self):
        return self._folder / str(os.getpid())

    @folder.setter
    def folder(self, folder):
        self._folder = folder


@pytest.fixture
def native(tmp_path, monkeypatch):
    """Return a compilation of its own, which workers inherit."""
    compiler = OnOneRank(find_compiler().command)
    made = NativeCompilation(Libraries(compiler, StoreOfEach(tmp_path)))
    for module in (native_function, functions):
        monkeypatch.setattr(module, "native_compilation", lambda: made)
    yield made
    OnOneRank.process = 0


def step():
    """Return a function that each rank computes for itself, what it updates, and the value before."""
    start = np.random.default_rng(0).normal(size=5000)
    w = pytensor.shared(start, name="w")
    change = pt.exp(w * 0.3).sum() * 1e-5
    mode = array_mode(ArrayLinker(native=True))
    return synk.function([], [], updates=[(w, w * 0.9 + change)], mode=mode), w, start


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(?s).*Graphs run in Python")
def test_what_workers_cannot_compile_runs_in_python_on_all_ranks(ranks, native):
    OnOneRank.process = os.getpid()
    ranks(2, device="cpu")
    update, w, start = step()
    for _ in range(2):
        update()
    mine, other = (synk.get_value(rank, w) for rank in range(2))
    np.testing.assert_array_equal(mine, other)
    assert mine[0] != start[0]
    assert gives_up in native._known.values()


@pytest.mark.parametrize("restarts", [0, slow(1)])
def test_what_all_ranks_compile_runs_as_c(ranks, native, restarts):
    ranks(2, device="cpu")
    update, w, _ = step()
    synk.distribute()
    update()
    for _ in range(restarts):
        synk.commit()
        synk.restart()  # the new worker has compiled nothing
        update()
    np.testing.assert_array_equal(*(synk.get_value(rank, w) for rank in range(2)))
    assert native._known
    assert gives_up not in native._known.values()


def doubled(native):
    """Return a function that has run as C."""
    x = pt.dvector("x")
    double = pytensor.function([x], pt.exp(x) * 2, mode=array_mode(ArrayLinker(native=True)))
    assert double([0.0]).tolist() == [2]
    assert gives_up not in native._known.values()
    return double


@pytest.mark.slow
def test_what_ran_as_c_runs_in_python_where_another_rank_cannot_compile_it(native):
    double = doubled(native)
    with pytest.warns(UserWarning, match="not all ranks compile C alike"):
        agree(lambda mine: [mine, mine[:-1]])
    x = pt.dvector("x")
    triple = pytensor.function([x], pt.exp(x) * 3, mode=array_mode(ArrayLinker(native=True)))
    assert (double([0.0]).tolist(), triple([0.0]).tolist()) == ([2], [3])
    assert len(native._known) > 1
    assert set(native._known.values()) == {gives_up}


@pytest.mark.slow
def test_what_fails_on_all_ranks_alike_lets_nothing_else_fail(native):
    doubled(native)
    told = []
    agree(lambda mine: [told.append(bytes(mine)), mine, mine][1:])
    native._known["kother"] = gives_up
    agree(lambda mine: [told.append(bytes(mine)), mine, mine][1:])
    assert told[0] != told[1]
    assert set(native._known.values()) != {gives_up}


def test_a_rank_without_a_compiler_takes_part(monkeypatch):
    monkeypatch.setattr(native_function, "native_compilation", lambda: None)
    told = []
    agree(lambda mine: [told.append(bytes(mine)), mine][1:])
    assert told == [b"no compiler"]


# --- what all regions call ------------------------------------------------------------------------


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


@pytest.mark.slow
def test_a_worker_compiles_it_before_the_first_function_is_built(ranks, compiled_by):
    store = compiled_by(*find_compiler().command)
    ranks(2, device="cpu")
    wait_until(lambda: store.folder.is_dir() and store.list_files()[0], 60)
    assert len(store.list_files()[0]) == 1
    exponential()(np.arange(3.0))
    assert len(store.list_files()[0]) == 2  # and the region


@pytest.mark.filterwarnings("ignore:(?s).*Graphs run in Python")
def test_where_it_does_not_compile_functions_run_in_python(ranks, compiled_by):
    compiled_by("false")
    ranks(2, device="cpu")
    x = np.arange(3.0)
    np.testing.assert_allclose(exponential()(x), np.exp(x) + x)
