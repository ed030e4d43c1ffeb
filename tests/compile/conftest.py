"""The oracle of the compile tests: PyTensor's own Python linker on the same graph."""

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode, predefined_linkers
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.basic import PerformLinker
from pytensor.link.vm import VMLinker

from synk.compile import ArrayLinker, array_mode

BARE = RewriteDatabaseQuery(include=["minimum_compile"])


@pytest.fixture
def oracle(monkeypatch):
    """Return the values of a graph by PyTensor's perform linker."""

    # Ops with inner graphs compile those in the default mode or for a virtual machine; both without C.
    monkeypatch.setitem(predefined_linkers, "vm", VMLinker(use_cloop=False, c_thunks=False))

    def evaluate(inputs, outputs, values, **keywords):
        mode = Mode(PerformLinker(), RewriteDatabaseQuery(include=["fast_compile", "py_only"]))
        with pytensor.config.change_flags(mode="FAST_COMPILE"):
            return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", **keywords)(
                *values
            )

    return evaluate


@pytest.fixture
def compare(oracle):
    """Check a graph against the oracle, rewritten and as it stands.

    Values, dtypes and shapes must agree, outputs must be arrays of their own, and inputs stay as they were.
    """

    def check(inputs, outputs, values, host=False, rtol=1e-6, atol=1e-8):
        expected = oracle(inputs, outputs, values)
        for mode in (array_mode(), Mode(ArrayLinker(), BARE)):
            function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
            if not host:
                assert function.vm.jit_fn.host_nodes == ()
            for _ in range(2):  # a second call finds what the first one left behind
                before = [np.array(value) for value in values]
                results = function(*values)
                for value, old in zip(values, before, strict=False):
                    np.testing.assert_array_equal(value, old)
                assert_same(results, expected, rtol, atol)
                assert_apart(results, values)

    return check


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
