import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.tensor.basic import Alloc, ARange
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.decomposition.qr import QR
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.linalg.summary import SLogDet
from pytensor.tensor.math import exp

from support.cases.draws import draw
from support.cases.unary_op import UnaryOp
from synk.compile import ArrayLinker


def definite(*batch, n=3):
    x = draw(*batch, n, n)
    return x @ x.swapaxes(-1, -2) + np.eye(n)


def compile_bare(inputs, outputs):
    return pytensor.function(inputs, outputs, mode=Mode(ArrayLinker(host_ops="raise"), None))


def test_batches_in_one_call(compare):
    x = pt.tensor4("x", dtype="float64")
    outputs = [pt.linalg.inv(x), pt.linalg.det(x), *Blockwise(SLogDet())(x), pt.linalg.cholesky(x)]
    compare([x], outputs, [definite(2, 3)])


def test_one_bad_matrix_spoils_no_other(compare):
    x, b = pt.tensor3("x", dtype="float64"), pt.tensor3("b", dtype="float64")
    values = definite(3)
    values[1] = -1
    # Square: PyTensor's own NaN have the shape of the matrix.
    compare([x, b], [pt.linalg.cholesky(x), pt.linalg.solve(x, b)], [values, draw(3, 3, 3)])


def test_matrix_by_matrix(compare):
    x, b = pt.tensor3("x", dtype="float64"), pt.tensor3("b", dtype="float64")
    outputs = [*pt.linalg.schur(x), *pt.linalg.lu_factor(x), pt.linalg.solve_triangular(x, b)]
    compare([x, b], outputs, [definite(4), draw(4, 3, 2)])


def test_batches_broadcast(compare):
    x, b = pt.matrix("x", dtype="float64"), pt.tensor4("b", dtype="float64")
    values = [definite(), draw(2, 3, 3, 1)]
    compare([x, b], [pt.linalg.solve_triangular(x, b), pt.linalg.solve(x, b)], values)
    compare([x, b], [pt.linalg.solve(x, b, assume_a="sym"), pt.linalg.solve(x, b[..., 0], b_ndim=1)], values)


@pytest.mark.parametrize(
    "core", [SolveTriangular(b_ndim=2, overwrite_b=True), Solve(b_ndim=2, overwrite_b=True)]
)
def test_what_serves_several_matrices_survives_the_first(core):
    x, b = pt.tensor3("x", dtype="float64"), pt.tensor("b", shape=(1, 3, 1), dtype="float64")
    op = Blockwise(core, destroy_map=core.destroy_map)
    inputs = [x, pytensor.In(b, mutable=True)]
    function = pytensor.function(inputs, op(x, b), mode=Mode(ArrayLinker(), None), accept_inplace=True)
    values = np.triu(definite(4))
    expected = np.linalg.solve(values, draw(1, 3, 1))
    np.testing.assert_allclose(function(values, draw(1, 3, 1)), expected)


def test_core_graph(compare):
    x, y = pt.dmatrix("x"), pt.dvector("y")
    core = OpFromGraph([x, y], [exp(x) @ y, pt.linalg.cholesky(x)])
    op = Blockwise(core, signature="(m,m),(m)->(m),(m,m)")
    batch, vectors = pt.dtensor3("batch"), pt.dmatrix("vectors")
    compare([batch, vectors], op(batch, vectors), [definite(4), draw(4, 3)])


def test_core_elemwise_and_view(compare):
    x = pt.dmatrix("x")
    row = Blockwise(DimShuffle(input_ndim=1, new_order=["x", 0]), signature="(n)->(1,n)")
    compare([x], [Blockwise(exp, signature="(n)->(n)")(x), row(x)], [draw(4, 3)])


def test_core_of_scalars(compare):
    x = pt.lvector("x")
    op = Blockwise(Alloc(), signature="(),(),()->(2,3)")
    compare([x], [op(x, pt.constant(2), pt.constant(3))], [np.arange(5)])


def test_results_must_stack():
    x = pt.lvector("x")
    op = Blockwise(ARange(dtype="int64"), signature="(),(),()->(a)")
    function = compile_bare([x], op(0, x, 1))
    np.testing.assert_array_equal(function([3, 3]), [[0, 1, 2]] * 2)
    with pytest.raises(ValueError, match="does not fit"):
        function([3, 1])


def test_an_empty_batch():
    x = pt.dtensor3("x")
    outputs = [Blockwise(Cholesky())(x), *pt.linalg.schur(x), *pt.linalg.lu_factor(x)]
    function = compile_bare([x], outputs)
    assert [result.shape for result in function(np.empty((0, 3, 3)))] == [(0, 3, 3)] * 4 + [(0, 3)]
    function = compile_bare([x], Blockwise(QR(mode="economic", pivoting=True))(x))
    with pytest.raises(ValueError, match="how long k, k of .*QR"):
        function(np.empty((0, 3, 3)))


class Twice(UnaryOp):
    """Unknown to the table of entries."""

    gufunc_signature = "(n)->(n)"

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0]


def test_core_op_without_an_entry_runs_on_the_host(compare):
    x = pt.dmatrix("x")
    node = Blockwise(Twice())(x).owner
    compare([x], node.outputs, [draw(4, 3)], host=True)
    function = pytensor.function([x], node.outputs, mode=Mode(ArrayLinker(), None))
    (reported,) = function.vm.jit_fn.host_nodes
    assert reported.op == node.op  # the whole batch is one trip


def test_host_nodes_of_core_graphs_are_reported():
    x, batch = pt.dvector("x"), pt.dmatrix("batch")
    op = Blockwise(OpFromGraph([x], [exp(Twice()(x))]), signature="(n)->(n)")
    function = pytensor.function([batch], op(batch), mode=Mode(ArrayLinker(), None))
    np.testing.assert_allclose(function(draw(4, 3)), np.exp(2 * draw(4, 3)))
    assert [node.op for node in function.vm.jit_fn.host_nodes] == [Twice()]
