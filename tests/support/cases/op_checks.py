"""Run graphs in every mode; assert that results agree with each other and with the declared types.

For the tests of Ops in ``tests/ops``.
"""

import sys

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

from support.cupy import stand_in
from synk.compile import ArrayLinker, array_mode, dumps, loads

PLAIN = Mode("py", "fast_compile")  # PyTensor's own: each Op's perform, nothing fused
RTOL = {"float32": 2e-5, "float64": 1e-11}
ATOL = {"float32": 2e-5, "float64": 1e-11}


def values_of(inputs, outputs, values, mode, **keywords):
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", **keywords)(*values)


def agree(inputs, outputs, values, rtol=None, atol=None):
    """Return the outputs by ``perform``, after asserting that kernels on the host and a device agree.

    Dtypes, declared shapes and inferred ones must be those of the values; the graph must travel.
    """
    expected = values_of(inputs, outputs, values, PLAIN)
    (there_inputs, there_outputs) = loads(dumps(inputs, outputs, share=lambda variable: 0), shared=None)
    with pytest.MonkeyPatch.context() as patch:
        stand_in.install(lambda modules, name, module: patch.setitem(sys.modules, name, module))
        found = [
            values_of(inputs, outputs, values, array_mode()),
            values_of(inputs, outputs, values, array_mode(ArrayLinker(stand_in))),
            values_of(there_inputs, there_outputs, values, PLAIN),
        ]
    for results in found:
        for variable, result, reference in zip(outputs, results, expected, strict=True):
            dtype = variable.type.dtype
            assert result.dtype == reference.dtype == dtype
            assert result.shape == reference.shape
            fits = zip(result.shape, variable.type.shape, strict=True)
            assert all(known in (None, length) for length, known in fits)
            scale = np.abs(reference[np.isfinite(reference)]).max(initial=1)
            np.testing.assert_allclose(
                result, reference, rtol=rtol or RTOL[dtype], atol=(atol or ATOL[dtype]) * scale
            )
    shapes = values_of(inputs, [variable.shape for variable in outputs], values, array_mode())
    assert [tuple(shape) for shape in shapes] == [result.shape for result in expected]
    return expected


def ops_of(function, kind):
    """Return the Ops of class ``kind`` in a compiled function."""
    return [node.op for node in function.maker.fgraph.toposort() if isinstance(node.op, kind)]


def draw(shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
