"""Entries of sparse Ops, held to PyTensor's own: values, formats, dtypes and who shares memory with whom."""

import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
from pytensor.compile.io import In
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.sparse.linalg import SparseBlockDiagonal
from pytensor.sparse.math import Usmm, gt, le, structured_add_s_v

from synk.compile import ArrayLinker, array_funcify, array_mode
from synk.compile.dispatch import sparse_math, sparse_values

BARE = RewriteDatabaseQuery(include=["minimum_compile"])
FORMATS = pytest.mark.parametrize("format", ["csr", "csc"])
RNG = np.random.default_rng(0)


@pytest.fixture
def compare(oracle):
    """Check a graph with sparse inputs or outputs against the oracle, rewritten and as it stands."""

    def check(inputs, outputs, values):
        expected = oracle(inputs, outputs, [value.copy() for value in values])
        before = [[part.copy() for part in buffers(value)] for value in values]
        for mode in (array_mode(), Mode(ArrayLinker(), BARE)):
            function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
            assert function.vm.jit_fn.host_nodes == ()
            for _ in range(2):  # a second call finds what the first one left behind
                results = function(*values)
                for variable, result, reference in zip(outputs, results, expected, strict=True):
                    assert_same(variable, result, reference)
                for value, old in zip(values, before, strict=True):
                    for part, copy in zip(buffers(value), old, strict=True):
                        np.testing.assert_array_equal(part, copy)
                assert_apart(results, values)

    return check


def buffers(value):
    return [value.data, value.indices, value.indptr] if sp.issparse(value) else [value]


def assert_same(variable, result, reference):
    assert result.dtype == variable.type.dtype
    assert result.shape == reference.shape
    assert sp.issparse(result) == sp.issparse(reference)
    if sp.issparse(result):
        assert type(result) is type(reference)
        result.check_format()
        result, reference = result.toarray(), reference.toarray()
    assert type(result) is np.ndarray
    np.testing.assert_allclose(result, reference, rtol=1e-5 if result.dtype == "float32" else 1e-12)


def assert_apart(results, values):
    for i, result in enumerate(results):
        for other in [*values, *results[:i]]:
            pairs = [(a, b) for a in buffers(result) for b in buffers(other)]
            assert not any(np.shares_memory(a, b) for a, b in pairs)


def variable(format, dtype="float64"):
    return ps.matrix(format, dtype=dtype)


def random(rows, columns, format, dtype="float64", density=0.4):
    value = sp.random(rows, columns, density=density, random_state=RNG, format=format)
    value.data = (10 * value.data - 5).astype(dtype)
    return value


def unruly(format):
    """Return a 2 by 3 matrix that stores a zero, two values at one position, and indices out of order."""
    matrix = getattr(sp, f"{format}_matrix")
    csr = sp.csr_matrix(([1.5, 0.0, 2.5, 2.0, 4.0], [2, 0, 2, 1, 0], [0, 3, 5]), shape=(2, 3))
    if format == "csr":
        return csr
    return matrix(([1.5, 0.5, 2.5, 0.0], [1, 0, 1, 0], [0, 3, 3, 4]), shape=(2, 3))


# --- parts, conversions, joining ----------------------------------------------------------------


@FORMATS
def test_parts_and_back(compare, format):
    x = variable(format, "float32")
    data, indices, indptr, shape = ps.csm_properties(x)
    outputs = [data, indices, indptr, shape, ps.CSM(format)(data * 2, indices, indptr, shape)]
    compare([x], outputs, [random(4, 3, format, "float32")])


def test_a_matrix_of_parts_that_do_not_fit_is_refused():
    data, indices = pt.dvector(), pt.ivector()
    function = pytensor.function(
        [data, indices], ps.CSR(data, indices, np.array([0, 1, 2]), np.array([2, 2])), mode=array_mode()
    )
    with pytest.raises(ValueError, match="2 values with 3 indices"):
        function(np.ones(2), np.array([0, 1, 1], "int32"))


@FORMATS
@pytest.mark.parametrize("nnz", ["some", "none"])
def test_gradient_of_the_stored_values(compare, format, nnz):
    # The gradient stores other positions than the matrix.
    x = random(4, 5, format, density=0.5 if nnz == "some" else 0)
    data, weight = pt.dvector(), variable(format)
    matrix = ps.CSM(format)(data, x.indices, x.indptr, np.array(x.shape, "int32"))
    gradient = pytensor.grad(ps.sp_sum(matrix * weight, sparse_grad=True), data)
    compare([data, weight], [gradient], [x.data, random(4, 5, format)])


@FORMATS
def test_conversions(compare, format):
    x, dense = variable(format), pt.fmatrix()
    from_dense = ps.csr_from_dense if format == "csr" else ps.csc_from_dense
    outputs = [ps.cast(x, "float32"), ps.cast(x, "float64"), ps.dense_from_sparse(x), from_dense(dense), x.T]
    value = np.array([[0, 1, 0], [2, 0, 3]], "float32")
    compare([x, dense], outputs, [unruly(format), value])


@FORMATS
def test_clean(compare, format):
    x = variable(format)
    outputs = [ps.remove0(x), ps.ensure_sorted_indices(x), ps.clean(x), ps.clean(x * 2.0)]
    compare([x], outputs, [unruly(format)])


@FORMATS
def test_zeros_are_removed_in_place_where_the_input_may_go(format):
    x = variable(format)
    output = ps.Remove0(inplace=True)(x)
    function = pytensor.function([In(x, mutable=True)], output, mode=array_mode(), accept_inplace=True)
    value = unruly(format)
    n_stored = value.nnz
    assert function(value) is value
    assert value.nnz == n_stored - 1


@FORMATS
def test_indices_are_sorted_in_place_where_the_input_may_go(format):
    node = ps.EnsureSortedIndices(inplace=True).make_node(variable(format))
    value, old = unruly(format), unruly(format)
    result = array_funcify(node.op, node, np)(value)
    assert result.has_sorted_indices
    assert (result is value) == bool(node.op.destroy_map)
    assert np.array_equal(value.indices, old.indices) == (not node.op.destroy_map)


@FORMATS
@pytest.mark.parametrize("number", [1, 3])
def test_stacks(compare, format, number):
    matrices = [variable(kind) for kind in ("csr", "csc", "csr")[:number]]
    values = [random(3, 3, kind) for kind in ("csr", "csc", "csr")[:number]]
    outputs = [
        stack(matrices, format, dtype) for stack in (ps.hstack, ps.vstack) for dtype in (None, "float32")
    ]
    compare(matrices, outputs, values)


@FORMATS
def test_block_diagonal(compare, format):
    x, y = variable(format), pt.fmatrix()
    compare(
        [x, y], [SparseBlockDiagonal(3, format)(x, y, x)], [random(2, 3, format), np.ones((3, 1), "float32")]
    )


def test_matrix_of_rows(compare):
    x, values, places = pt.dmatrix(), pt.dmatrix(), pt.ivector()
    output = ps.construct_sparse_from_list(x, values, places)
    rows = RNG.normal(size=(4, 3)).T  # columns in order in memory, as the matrix has them
    compare([x, values, places], [output], [np.zeros((5, 4)), rows, np.array([3, 0, 3], "int32")])
    function = pytensor.function([x, values, places], output, mode=array_mode())
    last = function(np.zeros((5, 4)), rows[:1], np.array([-1], "int32"))
    np.testing.assert_array_equal(last.toarray()[4], rows[0])
    with pytest.raises(IndexError, match="axis of length 5"):
        function(np.zeros((5, 4)), rows[:1], np.array([5], "int32"))
    with pytest.raises(ValueError, match="3 rows for 1 places"):
        function(np.zeros((5, 4)), rows, np.array([1], "int32"))


# --- indexing -----------------------------------------------------------------------------------


@FORMATS
def test_indexing(compare, format):
    x, index, other = variable(format), pt.ivector(), pt.lvector()
    i, j = pt.iscalar(), pt.lscalar()
    outputs = [
        ps.get_item_list(x, index),
        ps.get_item_2lists(x, index, other),
        ps.get_item_scalar(x, [i, j]),
        x[-1, 2],
        x[i:j],
        x[:, j:i:-1],
        x[:, :],
        x[::2, 1:3],
    ]
    values = [np.array([0, -1, 3, 3], "int32"), np.array([2, -2, 1, 1]), np.array(1, "int32"), np.array(3)]
    compare([x, index, other, i, j], outputs, [random(5, 4, format, density=0.8), *values])


@FORMATS
@pytest.mark.filterwarnings(
    "ignore::scipy.sparse.SparseEfficiencyWarning"
)  # of PyTensor's own implementation
def test_gradients_of_indexing(compare, format):
    x, index, other = variable(format), pt.lvector(), pt.lvector()
    rows, values = variable(format), pt.dvector()
    outputs = [ps.get_item_list_grad(x, index, rows), ps.get_item_2lists_grad(x, index, other, values)]
    # Row 2 is given three times, position (2, 3) twice, once from the end; the last counts.
    positions = [np.array([2, 0, -3, 2]), np.array([3, 1, -1, 0])]
    given = [random(4, 4, format, density=0.6), np.arange(1.0, 5.0)]
    compare([x, index, other, rows, values], outputs, [random(5, 4, format), *positions, *given])
    nothing = [np.array([], "int64")] * 2 + [random(0, 4, format), np.array([])]
    compare([x, index, other, rows, values], outputs[1:], [random(5, 4, format), *nothing])


@FORMATS
def test_positions_out_of_range_are_refused(format):
    x, index, other = variable(format), pt.lvector(), pt.lvector()
    rows, values = variable(format), pt.dvector()
    value, good, bad = random(3, 2, format), np.array([0]), np.array([3])
    place_rows, place_values = (
        ps.get_item_list_grad(x, index, rows),
        ps.get_item_2lists_grad(x, index, other, values),
    )
    given = [random(1, 2, format), np.ones(1)]
    for output, positions in [
        (ps.get_item_list(x, index), (bad, good)),
        (ps.get_item_2lists(x, index, other), (good, bad)),
        (ps.get_item_2lists(x, index, other), (-bad - 1, good)),
        (place_rows, (bad, good)),
        (place_rows, (-bad - 1, good)),
        (place_values, (good, bad)),
        (ps.get_item_scalar(x, [index[0], other[0]]), (bad, good)),
    ]:
        function = pytensor.function(
            [x, index, other, rows, values], output, mode=array_mode(), on_unused_input="ignore"
        )
        with pytest.raises(IndexError):
            function(value, *positions, *given)


@FORMATS
def test_gradients_of_indexing_check_lengths(format):
    x, index, rows, values = variable(format), pt.lvector(), variable(format), pt.dvector()
    outputs = ps.get_item_list_grad(x, index, rows), ps.get_item_2lists_grad(x, index, index, values)
    for given, output, value in zip((rows, values), outputs, (random(1, 2, format), np.ones(1)), strict=True):
        function = pytensor.function([x, index, given], output, mode=array_mode())
        with pytest.raises(ValueError, match=r"no 2 rows|cannot be combined"):
            function(random(3, 2, format), np.array([0, 1]), value)


@FORMATS
def test_diagonal(compare, format):
    x = variable(format)
    compare([x], [ps.diag(x)], [random(4, 4, format)])
    with pytest.raises(ValueError, match="square"):
        pytensor.function([x], ps.diag(x), mode=array_mode())(random(4, 3, format))


# --- arithmetic ---------------------------------------------------------------------------------


@FORMATS
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
def test_sums(compare, format, dtype):
    x = variable(format, dtype)
    compare([x], [ps.sp_sum(x, axis) for axis in (None, 0, 1)], [random(5, 4, format, dtype)])


@FORMATS
@pytest.mark.parametrize("other_format", ["csr", "csc"])
def test_two_matrices(compare, format, other_format):
    x, y = variable(format), variable(other_format, "float32")
    values = [unruly(format), unruly(other_format).astype("float32")]
    compare([x, y], [ps.add(x, y), ps.multiply(x, y), x - y], values)


@FORMATS
def test_matrices_with_equal_positions(compare, format):
    x, y = variable(format), variable(format)
    compare([x, y], [ps.math.add_s_s_data(x, y)], [unruly(format), unruly(format)])


@FORMATS
def test_matrix_and_array(compare, format):
    x, dense, row, scalar = variable(format), pt.fmatrix(), pt.dvector(), pt.dscalar()
    outputs = [
        ps.add(x, dense),
        ps.multiply(x, dense),
        ps.multiply(x, row),
        ps.multiply(x, scalar),
        structured_add_s_v(x, row),
        ps.col_scale(x, row),
        ps.row_scale(x, row[:2]),
    ]
    values = [RNG.normal(size=(2, 3)).astype("float32"), RNG.normal(size=3), np.array(3.0)]
    compare([x, dense, row, scalar], outputs, [unruly(format), *values])


@FORMATS
def test_products_with_an_array_stay_sparse(format):
    x, row = variable(format), pt.dvector()
    function = pytensor.function(
        [x, row], [ps.multiply(x, row), structured_add_s_v(x, row)], mode=array_mode()
    )
    product, total = function(sp.eye(2, format=format), np.array([np.inf, 2]))
    assert product.toarray().tolist() == [[np.inf, 0], [0, 2]]
    assert total.toarray().tolist() == [[np.inf, 0], [0, 3]]


@FORMATS
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("relation", [ps.eq, ps.neq, ps.lt, gt, le, ps.ge])
def test_comparisons(compare, format, relation):
    x, y, dense = variable(format), variable(format), pt.dmatrix()
    values = [unruly(format), random(2, 3, format), unruly(format).toarray() + np.array([[0, 0, 1]])]
    compare([x, y, dense], [relation(x, y), relation(x, dense), relation(dense, x)], values)


@pytest.mark.parametrize(
    "combine",
    [
        lambda x, y, d, v: ps.add(x, y),
        lambda x, y, d, v: ps.multiply(x, y),
        lambda x, y, d, v: ps.math.add_s_s_data(x, y),
        lambda x, y, d, v: ps.lt(x, y),
        lambda x, y, d, v: ps.add(x, d),
        lambda x, y, d, v: ps.multiply(x, d),
        lambda x, y, d, v: ps.lt(x, d),
        lambda x, y, d, v: ps.multiply(x, v),
        lambda x, y, d, v: structured_add_s_v(x, v),
        lambda x, y, d, v: ps.col_scale(x, v),
        lambda x, y, d, v: ps.row_scale(x, v),
        lambda x, y, d, v: ps.dot(x, d),
        lambda x, y, d, v: ps.structured_dot(x, d),
        lambda x, y, d, v: ps.true_dot(x, y),
        lambda x, y, d, v: ps.sampling_dot(d, ps.dense_from_sparse(x), y),
        lambda x, y, d, v: ps.structured_dot_grad(x, d, d[:, :1]),
    ],
)
def test_shapes_that_differ_are_refused(combine):
    inputs = variable("csr"), variable("csr"), pt.dmatrix(), pt.dvector()
    function = pytensor.function(inputs, combine(*inputs), mode=array_mode(), on_unused_input="ignore")
    with pytest.raises(ValueError, match=r"cannot be (combined|multiplied)|does not fit|[Mm]ismatch"):
        function(random(4, 3, "csr"), random(1, 2, "csr"), np.ones((1, 2)), np.ones(1))


# --- products -----------------------------------------------------------------------------------


@FORMATS
@pytest.mark.parametrize("other_format", ["csr", "csc"])
def test_products_of_two_matrices(compare, format, other_format):
    x, y = variable(format), variable(other_format)
    outputs = [ps.dot(x, y), ps.structured_dot(x, y), ps.true_dot(x, y)]
    compare([x, y], outputs, [random(4, 3, format), random(3, 5, other_format)])


@FORMATS
def test_products_with_an_array(compare, format):
    x, dense, row = variable(format, "float32"), pt.dmatrix(), pt.dvector()
    same = pt.fmatrix()
    outputs = [
        ps.dot(x, dense),
        ps.dot(dense.T, x.T),
        ps.dot(x, row),
        ps.dot(row, x.T),
        ps.structured_dot(x, dense),
        ps.structured_dot(x, dense[:, :1]),
        ps.structured_dot(dense.T, x.T),
        ps.true_dot(x, same),
        ps.true_dot(same.T, x.T),
    ]
    values = [RNG.normal(size=(3, 2)), RNG.normal(size=3), RNG.normal(size=(3, 2)).astype("float32")]
    compare([x, dense, row, same], outputs, [random(4, 3, format, "float32"), *values])


@FORMATS
@pytest.mark.parametrize("dense_first", [True, False])
def test_scaled_product_and_sum(compare, format, dense_first):
    alpha, z = pt.tensor(dtype="float32", shape=(1, 1)), pt.dmatrix()
    x, y = pt.dmatrix(), variable(format)
    values = [RNG.normal(size=(4, 3)), random(3, 4, format)]
    if not dense_first:
        x, y, values = y, x, values[::-1]
    n = values[0].shape[0]
    output = Usmm()(alpha, x, y, z)
    compare([alpha, x, y, z], [output], [np.full((1, 1), 0.5, "float32"), *values, RNG.normal(size=(n, n))])


@FORMATS
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_gradients_of_products(compare, monkeypatch, format, chunk):
    monkeypatch.setattr(sparse_math, "CHUNK", chunk)
    x, dense, weight = variable(format), pt.dmatrix(), pt.dmatrix()
    y, g = variable(format), variable("csr" if format == "csc" else "csc")
    p = variable(format)
    outputs = [
        *pytensor.grad((ps.structured_dot(x, dense) * weight).sum(), [x, dense]),
        ps.structured_dot_grad(x, y, g),
        ps.sampling_dot(weight, dense, p),
    ]
    values = [RNG.normal(size=(3, 5)), RNG.normal(size=(4, 5))]
    sparse = [random(3, 5, format), random(4, 5, g.type.format), random(4, 3, format)]
    compare([x, dense, weight, y, g, p], outputs, [random(4, 3, format), *values, *sparse])
    empty = random(4, 3, format, density=0)
    compare([x, dense, weight, y, g, p], outputs, [empty, *values, *sparse[:2], empty])


def test_few_rows_are_gathered_at_a_time(monkeypatch):
    """The gradient of a product takes the memory of its chunks, not of a row for every stored value."""
    seen = []
    pair = sparse_math._paired
    monkeypatch.setattr(sparse_math, "CHUNK", 20)
    monkeypatch.setattr(sparse_math, "_paired", lambda x, y, *more: seen.append(x.shape) or pair(x, y, *more))
    x, index = RNG.normal(size=(6, 8)), np.arange(5)
    result = sparse_math.row_products(x, x, index, index[::-1], "float64", np)
    np.testing.assert_allclose(result, (x @ x.T)[index, index[::-1]])
    assert seen == [(2, 8), (2, 8), (1, 8)]


# --- where a device has no such matrices ------------------------------------------------------------


def test_matrices_that_a_device_cannot_hold_stay_on_the_host(device):
    whole, real = variable("csr", "int64"), variable("csr")
    assert sparse_values.can_hold(np, ps.sp_sum(whole).owner)
    for output, held in [(ps.sp_sum(whole), False), (ps.sp_sum(real), True), (ps.lt(real, real), False)]:
        assert sparse_values.can_hold(device, output.owner) == held
