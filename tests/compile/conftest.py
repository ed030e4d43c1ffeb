"""The oracle of the compile tests: PyTensor's own Python linker on the same graph.

Every comparison is four tests: on NumPy in Python, and in C; on the stand-in for a GPU's array module, where
nothing travels unasked; and on CuPy where there is a GPU. `make test` leaves out the stand-in, and C, whose
compiler takes as long as all else here: `tests/compile/regions` tries what there is in C.
"""

import gc

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode, predefined_linkers
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import PerformLinker
from pytensor.link.vm import VMLinker
from pytensor.tensor.random.op import RandomVariable

from support.cupy.array_modules import HOST_AND_DEVICES, import_arrays
from support.cupy.array_modules import cupy as cupy
from support.cupy.array_modules import device as device
from support.slow import slow
from synk.compile import ArrayLinker, array_mode

BARE = RewriteDatabaseQuery(include=["minimum_compile"])


@pytest.fixture
def few_objects():
    """Let the collector of garbage look only at what a test makes, and not at what others have left."""
    gc.collect()
    gc.collect()
    gc.freeze()  # and they stay so: to unfreeze them would unfreeze all modules, too


@pytest.fixture
def oracle(monkeypatch):
    """Return the values of a graph by PyTensor's perform linker."""

    # Ops with inner graphs compile those in the default mode or for a virtual machine, Scans for that in C.
    # None of it needs C here, whose compiler takes a second for each Op.
    for name in ("vm", "cvm"):
        monkeypatch.setitem(predefined_linkers, name, VMLinker(use_cloop=False, c_thunks=False))

    def evaluate(inputs, outputs, values, **keywords):
        mode = Mode(PerformLinker(), BARE)
        with pytensor.config.change_flags(mode="FAST_COMPILE"):
            return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", **keywords)(
                *values
            )

    return evaluate


# Computed on the host where the array module is not NumPy: CuPy has no form of them, or no complete one.
HOST_ON_DEVICE = {
    *("RandomVariable", "pytensor.sparse", "pytensor.typed_list"),
    *("Eigh", "Eigvalsh"),  # generalised
    *("LU", "LUFactorTridiagonal", "SolveLUFactorTridiagonal", "QR", "QZ", "Schur", "TRSYL"),
}


@pytest.fixture(params=[*HOST_AND_DEVICES, slow("C")])
def linker(request, monkeypatch):
    """Return a linker for NumPy, in Python or in C, or for the array module of a device."""
    if request.param in ("numpy", "C"):
        return ArrayLinker(native=request.param == "C")
    return ArrayLinker(import_arrays(request.param, monkeypatch))


@pytest.fixture
def arrays(linker):
    """Return the array module that computes."""
    return linker.xp


@pytest.fixture
def compare(oracle, linker):
    """Check a graph against the oracle, rewritten and as it stands.

    Values, dtypes and shapes must agree, outputs must be arrays of their own, and inputs stay as they were.
    ``host`` permits nodes that run their own implementation. ``on_device=False`` leaves devices out: their
    routines have the right to another answer there, such as eigenvectors of the other sign.
    """
    on_host = linker.xp is np

    def check(inputs, outputs, values, host=False, rtol=1e-6, atol=1e-8, on_device=True):
        if not (on_host or on_device):
            pytest.skip("another answer of a device is as good")
        expected = oracle(inputs, outputs, values)
        as_it_stands = [] if linker.native else [Mode(linker, BARE)]  # regions are rewrites
        for mode in (array_mode(linker), *as_it_stands):
            function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
            moved = {core_name(node.op) for node in function.vm.jit_fn.host_nodes}
            assert host or moved <= (set() if on_host else HOST_ON_DEVICE)
            for _ in range(2):  # a second call finds what the first one left behind
                before = [np.array(value) for value in values]
                results = function(*values)
                for value, old in zip(values, before, strict=False):
                    np.testing.assert_array_equal(value, old)
                assert_same(results, expected, rtol, atol)
                assert_apart(results, values)

    return check


def core_name(op):
    """Return the name of an Op, or of its family; of a Blockwise, that of what it does to each matrix."""
    core = type(getattr(op, "core_op", op))
    families = ("pytensor.sparse", "pytensor.typed_list")
    name = "RandomVariable" if issubclass(core, RandomVariable) else core.__name__
    return next((family for family in families if core.__module__.startswith(family)), name)


def assert_same(results, expected, rtol, atol):
    for result, reference in zip(results, expected, strict=True):
        assert type(result) is np.ndarray
        assert result.dtype == reference.dtype
        assert result.shape == reference.shape
        np.testing.assert_allclose(result, reference, rtol=rtol, atol=atol)


def assert_apart(results, values):
    others = [value for value in values if isinstance(value, np.ndarray)]
    for i, result in enumerate(results):
        assert not any(np.shares_memory(result, other) for other in [*others, *results[:i]])
