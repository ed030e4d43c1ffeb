"""Inputs that are accepted, and those that are refused by name: of calls, of Data, of collectives."""

import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor.tensor.random.type import random_generator_type

import synk
from support.slow import slow

VALUES = np.arange(26.0).reshape(13, 2)  # seven rows and six
MASKED = np.ma.masked_array(VALUES, mask=VALUES > 20)

pytestmark = pytest.mark.usefixtures("module_ranks")


@pytest.fixture(scope="module")
def sums(module_ranks):
    x = pt.matrix("x", dtype="float64")
    return synk.function([x], [(x.sum(axis=0), "sum"), (x, "gather")])


# --- accepted ------------------------------------------------------------------------------------------


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


def mapped(values, tmp_path):
    np.save(tmp_path / "rows.npy", values)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def frame(library):
    """Return a maker of tables or arrays of a library that may be missing."""

    def make(values):
        module = pytest.importorskip(library)
        if library == "pandas":
            return module.DataFrame(values, columns=["a", "b"])
        if library == "polars":
            return module.DataFrame({"a": values[:, 0], "b": values[:, 1]})
        if library == "xarray":
            return module.DataArray(values, dims=("row", "column"))
        return module.from_numpy(values.copy())

    return make


class Own:
    """An array of somebody's own."""

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, dtype=dtype)


ACCEPTED = {
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(map(tuple, values)),
    "pandas": frame("pandas"),
    "polars": frame("polars"),
    "xarray": frame("xarray"),
    "torch": frame("torch"),
    "__array__": Own,
    "read-only": read_only,
    "Fortran order": np.asfortranarray,
    "steps": lambda values: np.repeat(values, 2, axis=0)[::2],
    "backwards": lambda values: values[::-1].copy()[::-1],
    "big-endian": lambda values: values.astype(">f8"),
    "float32": lambda values: values.astype("float32"),
    "int32": lambda values: values.astype("int32"),
    "np.matrix": np.asmatrix,
    "nothing masked": lambda values: np.ma.masked_array(values, mask=False),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("kind", [slow(kind) if kind == "pandas" else kind for kind in ACCEPTED])
def test_arrays_of_any_kind_are_inputs(sums, kind):
    value = ACCEPTED[kind](VALUES)
    for given in (value, sums.build_inputs(value)):
        total, rows = sums(given)
        np.testing.assert_array_equal(total, VALUES.sum(axis=0))
        np.testing.assert_array_equal(rows, VALUES)
        np.testing.assert_array_equal(sums(given, batch=[12, 0, 5])[1], VALUES[[12, 0, 5]])


def test_memory_maps_are_inputs(sums, tmp_path):
    value = mapped(VALUES, tmp_path)
    for given in (value, sums.build_inputs(value)):
        np.testing.assert_array_equal(sums(given)[1], VALUES)


@pytest.mark.parametrize(
    "values", [VALUES[:0], VALUES > 3, np.ones((2, 0))], ids=["no rows", "bool", "no columns"]
)
def test_edges_are_inputs(sums, values):
    np.testing.assert_array_equal(sums(values)[1], values)
    np.testing.assert_array_equal(sums(sums.build_inputs(values))[1], values)


def test_numbers_are_broadcast_inputs():
    s = pt.scalar("s", dtype="float64")
    f = synk.function([], s * 2, bcast_inputs=[s])
    for value in (3, 3.0, np.float32(3), np.int64(3), np.array(3.0), synk.data(3.0)):
        assert f(value) == 6


# --- refused -------------------------------------------------------------------------------------------

REFUSED = {
    "masked": (MASKED, "5 of 26 values masked"),
    "object": (VALUES.astype(object), "float64, the value is ndarray of dtype object"),
    "text": (VALUES.astype(str), "text into numbers"),
    "dates": (VALUES.astype("M8[D]"), r"datetime64\[D\]"),
    "complex": (VALUES + 1j, "complex128"),
    "records": (np.zeros((2, 2), [("a", "f8")]), "one field"),
    "sparse": (scipy.sparse.csr_matrix(VALUES), r"sparse \(csr_matrix\)"),
    "sparse array": (scipy.sparse.coo_array(VALUES), r"sparse \(coo_array\)"),
    "none": (None, "NoneType"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_call_names_the_input(sums, kind):
    value, match = REFUSED[kind]
    for use in (sums, sums.as_pytensor):
        with pytest.raises(TypeError, match=f"input 'x'.*{match}"):
            use(value)
    assert sums(VALUES)[0].tolist() == VALUES.sum(axis=0).tolist()


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind != "none"])
def test_data_and_collectives_refuse_the_same(sums, kind):
    value, _ = REFUSED[kind]
    data, v = synk.data(VALUES, name="d"), pytensor.shared(VALUES, name="v")
    with pytest.raises(TypeError, match="Data 'x'"):
        sums.build_inputs(value)
    with pytest.raises(TypeError, match="Data 'd'"):
        data.set_value(value)
    with pytest.raises(TypeError, match="'v'"):
        synk.broadcast(v, value)
    if kind != "complex":
        with pytest.raises(TypeError, match="'named'"):
            synk.data(value, name="named")


def test_no_mask_is_lost_on_the_way_into_data():
    data = synk.data(VALUES, name="d")
    with pytest.raises(TypeError, match="for Data 'd' is a masked array"):
        data[:] = MASKED
    with pytest.raises(TypeError, match="for Data 'd' is a masked array"):
        data.set_value(MASKED, force_cast=True)
    np.testing.assert_array_equal(data, VALUES)


def test_no_mask_is_lost_of_a_selection(sums):
    with pytest.raises(TypeError, match="batch is a masked array, 1 of 2"):
        sums(VALUES, batch=np.ma.masked_array([0, 1], mask=[True, False]))


def test_data_of_another_dtype_say_how_to_make_it(sums):
    with pytest.raises(TypeError, match=r"'x' has dtype float64, the Data float32; .*dtype='float64'"):
        sums(synk.data(VALUES.astype("float32")))
    np.testing.assert_array_equal(sums(synk.data(VALUES.astype("float32"), dtype="float64"))[1], VALUES)


# --- sparse variables ------------------------------------------------------------------------------------


def test_sparse_inputs_are_refused_when_the_function_is_built():
    S, x = ps.csr_matrix("S"), pt.matrix("x", dtype="float64")
    product = ps.structured_dot(S, x).sum()
    for inputs, bcast_inputs in (([S], [x]), ([x], [S])):
        with pytest.raises(TypeError, match=r"input 'S' is sparse; .*bcast_inputs, .*CSR\(data, indices"):
            synk.function(inputs, (product, "sum"), bcast_inputs=bcast_inputs)
    with pytest.raises(TypeError, match=r"output 0 .* is sparse, which has no 'avg'"):
        synk.function([], (ps.csr_from_dense(x), "avg"), bcast_inputs=[x])
    shared = pytensor.shared(scipy.sparse.csr_matrix(VALUES), name="shared")
    with pytest.raises(TypeError, match="sliceable variable 'shared' has no rows"):
        synk.function([], shared.sum(), sliceable_shareds=[shared])


def test_the_parts_of_a_sparse_matrix_are_inputs():
    matrix = scipy.sparse.random(5, 2, density=0.5, format="csr", random_state=1)
    parts = matrix.data, matrix.indices, matrix.indptr, np.array(matrix.shape, "int32")
    names = [
        pt.vector("data", dtype="float64"),
        *(pt.ivector(name) for name in ("indices", "indptr", "shape")),
    ]
    x = pt.matrix("x", dtype="float64")
    f = synk.function([x], (ps.structured_dot(ps.CSR(*names), x.T).sum(axis=1), "sum"), bcast_inputs=names)
    np.testing.assert_allclose(f(VALUES, *parts), (matrix @ VALUES.T).sum(axis=1))


def test_sparse_shared_variables_serve_in_functions():
    """And travel: at their first use, by broadcast and by get_value; the other collectives refuse them."""
    matrix = scipy.sparse.csr_matrix(VALUES)
    shared, x = pytensor.shared(matrix, name="shared"), pt.matrix("x", dtype="float64")
    f = synk.function([x], (ps.structured_dot(shared, x.T).sum(), "sum"))
    np.testing.assert_allclose(f(VALUES), (matrix @ VALUES.T).sum())
    synk.function([], updates=[(shared, shared * 2.0)])()
    assert abs(synk.get_value(1, shared) - 2 * matrix).max() == 0
    synk.function([x], updates=[(shared, shared * x.sum(), None)])(VALUES)  # others on each rank
    assert abs(synk.get_value(1, shared) - shared.get_value()).max() > 0
    synk.broadcast(shared)
    assert abs(synk.get_value(1, shared) - shared.get_value()).max() == 0
    for use in (synk.all_reduce, synk.gather, synk.get_shapes):
        with pytest.raises(TypeError, match="shared variable 'shared' is not an array: it is Sparse"):
            use(shared)
    with pytest.raises(TypeError, match="shared variable 'shared' cannot be broadcast in a sequence"):
        synk.sequence((synk.broadcast, shared))


def test_what_has_no_dtype_is_no_input():
    state = random_generator_type("state")
    with pytest.raises(TypeError, match="input 'state' is .*, not an array; make it a shared variable"):
        synk.function([], (state, None), bcast_inputs=[state])
