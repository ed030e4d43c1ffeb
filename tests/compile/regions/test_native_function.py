"""Regions are compiled at their first call, on every thread and in every child; else Python runs."""

import os
import signal
import threading
import warnings

import numpy as np
import pytensor.tensor as pt
import pytest

from support.regions.compiled import compiled
from synk.compile.native.compiler import Compiler
from synk.compile.native.libraries import Libraries
from synk.compile.native.store import Store
from synk.compile.regions import functions as region_functions
from synk.compile.regions.native_function import NativeCompilation


@pytest.fixture
def compiles_with(monkeypatch, tmp_path):
    """Let a command compile what is made next."""

    def use(*command):
        compilation = NativeCompilation(Libraries(Compiler(command), Store(tmp_path)))
        monkeypatch.setattr(region_functions, "native_compilation", lambda: compilation)

    return use


def test_a_text_that_does_not_compile_runs_in_python_and_one_warning_says_so(compiles_with):
    compiles_with("false")
    x = pt.dmatrix("x")
    functions = [compiled([x], (x * k).sum(axis=0)) for k in (2, 3)]
    with pytest.warns(UserWarning, match="Graphs run in Python; set CC to a C compiler that works") as said:
        found = [function(np.ones((4, 3))) for function in functions]
    assert len(said) == 1
    np.testing.assert_array_equal(found, [[8, 8, 8], [12, 12, 12]])


@pytest.mark.slow
def test_an_interrupted_compilation_is_made_up_for(compiles_with, monkeypatch):
    compiles_with("cc")
    x = pt.dmatrix("x")
    functions = [compiled([x], (x * k).sum(axis=0)) for k in (7, 8)]
    compile_ = Compiler.compile
    monkeypatch.setattr(Compiler, "compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        functions[0](np.ones((2, 1)))
    monkeypatch.setattr(Compiler, "compile", compile_)
    assert [float(function(np.ones((2, 1)))[0]) for function in functions] == [14, 16]


@pytest.mark.slow
def test_a_child_that_is_forked_while_another_thread_compiles_compiles_too(compiles_with, monkeypatch):
    x = pt.dmatrix("x")
    compiles_with("cc")
    function, compile_ = compiled([x], (x * 7).sum(axis=0)), Compiler.compile
    begun, go = threading.Event(), threading.Event()

    def slowly(*arguments):
        begun.set()
        assert go.wait(60)
        return compile_(*arguments)

    monkeypatch.setattr(Compiler, "compile", slowly)
    thread = threading.Thread(target=function, args=(np.ones((2, 1)),))
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends it, if it waits for a thread that is not there
        go.set()
        os._exit(0 if function(np.ones((2, 1))) == [14] else 1)
    go.set()
    thread.join()
    assert os.waitpid(child, 0) == (child, 0)


def interrupted(*arguments):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_what_the_store_has_is_not_compiled_again(compiles_with, tmp_path):
    x = pt.dmatrix("x")
    compiles_with("cc")
    compiled([x], (x * 5).sum(axis=0))(np.ones((4, 3)))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept
    compiles_with("cc")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(compiled([x], (x * 5).sum(axis=0))(np.ones((4, 3))), [20] * 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
