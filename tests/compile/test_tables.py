"""Every implementation that takes ``out=`` writes the bits there that it returns without."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.scalar import xor
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm, Gemv
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot, Sum

from synk.compile import tables
from synk.compile.compat import Ger
from synk.compile.dispatch import array_funcify
from synk.compile.tables import accepts_out

m, v, t, y = pt.fmatrix("m"), pt.fvector("v"), pt.ftensor3("t"), pt.fvector("y")
i, z, a = pt.lmatrix("i"), pt.fmatrix("z"), pt.fscalar("a")

NODES = [
    Dot()(m, z),
    Dot22()(m, z),
    Dot22Scalar()(m, z, a),
    BatchedDot()(t, t),
    Gemm(inplace=False)(m, a, m, z, a),
    Gemv(inplace=False)(v, a, m, v, a),
    *[Sum(axis)(m) for axis in (None, (0,), (1,), ())],
    *[Sum(axis)(t) for axis in ((0, 2), (1,))],
    Sum((0,))(i),
    Sum((0,), acc_dtype="float64", dtype="float64")(m),
    pt.prod(m, 0),
    pt.max(m, 1),
    pt.all(m > 0, 0),
    CAReduce(xor, (0,))(i),
    pt.join(0, m, z),
    pt.join(1, m, i),
]
if hasattr(Ger, "perform"):
    NODES.append(Ger(False)(m, a, v, v))


def value_of(variable):
    generator = np.random.default_rng(variable.ndim)
    if variable.dtype == "float32" or variable.dtype == "float64":
        return generator.normal(size=(40,) * variable.ndim).astype(variable.dtype)
    return generator.integers(-9, 9, (40,) * variable.ndim).astype(variable.dtype)


@pytest.mark.parametrize("output", NODES, ids=str)
def test_destination(output):
    node = output.owner
    implementation = array_funcify(node.op, node, np)
    assert accepts_out(implementation, np)
    inputs = [x.data if hasattr(x, "data") else value_of(x) for x in node.inputs]
    expected = np.asarray(implementation(*inputs))
    assert expected.dtype == output.type.dtype
    out = np.full_like(expected, 77, order="C")
    assert implementation(*inputs, out=out) is out
    np.testing.assert_array_equal(out, expected, strict=True)


@pytest.mark.parametrize("output", [Gemm(inplace=True)(m, a, z, z, a), Gemv(inplace=True)(v, a, m, y, a)])
def test_what_is_computed_in_place_takes_none(output):
    assert not accepts_out(array_funcify(output.owner.op, output.owner, np), np)


def test_the_path_that_docs_have_shown_still_serves():
    from synk.gpu.dispatch.width import Width, width

    assert (Width, width) == (tables.Width, tables.width)
