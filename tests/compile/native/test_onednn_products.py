"""Products of float32 matrices by oneDNN: for which processors and sizes, and how matrices may lie."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.cases.draws import draw
from synk.compile import ArrayLinker, array_mode
from synk.compile.dispatch import blas
from synk.compile.native import methods, onednn_products
from synk.compile.native.find_onednn import find
from synk.compile.native.onednn_products import Pointers, Products, Sizes, faster_products, sizes_for

ALL = Sizes(rows=1, columns=1, least=0, most=1 << 60)


@pytest.fixture
def dot():
    """Return products of which oneDNN computes all that it can."""
    if find().library is None:
        pytest.skip("oneDNN is not installed")
    return Products(find().library, ALL)


def matrix(*shape):
    return draw(*shape).astype("float32")


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f\n\nvendor_id\t: GenuineIntel", True),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512fp16", False),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f", True),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2", False),
        ("Features\t: fp asimd", False),
        ("", False),
    ],
)
def test_the_processor_decides(told, found):
    assert (sizes_for(told) is not None) == found


def test_blas_with_threads_keeps_its_products(monkeypatch):
    monkeypatch.setattr(onednn_products, "products_here", lambda: "oneDNN")
    for threads, expected in (({1}, "oneDNN"), ({2}, None), ({1, 2}, None), (set(), None)):
        monkeypatch.setattr(onednn_products, "threads_of_blas", lambda threads=threads: threads)
        assert faster_products() == expected


def test_a_machine_without_the_library_has_none(monkeypatch):
    monkeypatch.setattr(onednn_products, "cpuinfo", lambda: "vendor_id: GenuineIntel\nflags: avx512f")
    monkeypatch.setattr(onednn_products, "find", lambda: type("Found", (), {"library": None}))
    assert onednn_products.products_here.__wrapped__() is None


FACTORS = [
    (matrix(6, 5), matrix(5, 9)),
    (matrix(5, 6).T, matrix(9, 5).T),
    (matrix(6, 8)[:, 2:7], matrix(9, 12).T[4:9]),  # rows apart
    (matrix(6, 10)[:, ::2], matrix(5, 9)),  # not for BLAS: elements apart,
    (matrix(6, 5)[::-1], matrix(5, 9)[:, ::-1]),  # backwards,
    (np.broadcast_to(matrix(1, 5), (6, 5)), matrix(5, 9)),  # in one place,
    (np.ndarray((6, 5), "float32", matrix(40).tobytes(), offset=1), matrix(5, 9)),  # between words
    (matrix(1, 5), matrix(5, 9)),
    (matrix(6, 1), matrix(1, 9)),
    (matrix(6, 5), matrix(5, 1)),
    (matrix(0, 5), matrix(5, 9)),
    (matrix(6, 0), matrix(0, 9)),
    (matrix(6, 5), matrix(5, 0)),
]


@pytest.mark.parametrize(("x", "y"), FACTORS)
def test_matrices_may_lie_in_any_way(dot, x, y):
    out = np.full((len(x), y.shape[1]), np.nan, "float32")
    assert dot(x, y, out=out) is out
    np.testing.assert_allclose(out, np.dot(x, y), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(dot(x, y), out)


def test_a_matrix_times_its_transpose_is_symmetric(dot):
    x = matrix(70, 50)
    np.testing.assert_array_equal(dot(x, x.T), dot(x, x.T).T)


def test_no_number_is_lost(dot):
    x, y = matrix(6, 5), matrix(5, 9)
    x[0, 1], x[1, 1], y[1] = np.nan, np.inf, 0
    np.testing.assert_array_equal(np.isnan(dot(x, y)), [[True] * 9] * 2 + [[False] * 9] * 4)


def test_matrices_that_do_not_fit_are_refused(dot):
    with pytest.raises(ValueError, match="not aligned"):
        dot(matrix(6, 5), matrix(6, 9))


def test_the_same_product_has_the_same_bits_wherever_it_lies(dot):
    x, y = matrix(37, 131), matrix(131, 67)
    expected = dot(x, y)
    for offset in range(1, 16):
        memory = np.zeros(x.size + 16, "float32")
        moved = memory[offset : offset + x.size].reshape(x.shape)
        moved[...] = x
        np.testing.assert_array_equal(dot(moved, y), expected)


def test_openmp_keeps_its_threads(dot):
    library = find().library
    before = library.omp_get_max_threads()
    try:
        library.omp_set_num_threads(3)
        dot(matrix(6, 5), matrix(5, 9))
        assert library.omp_get_max_threads() == 3
    finally:
        library.omp_set_num_threads(before)


MULTIPLY = ctypes.CFUNCTYPE(ctypes.c_int, *Products.ARGUMENTS)
kept = []  # regions have addresses of these for as long as the process lives


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize(("rows", "taken"), [(7, False), (8, True)])
def test_a_region_calls_it_for_its_sizes(monkeypatch, status, rows, taken):
    calls = []

    def multiply(x_order, y_order, rows, columns, inner, alpha, x, x_lead, y, y_lead, beta, z, z_lead):
        calls.append((x_order, y_order, rows, columns, inner, alpha, x_lead, y_lead, beta, z_lead))
        if status == 0:
            (ctypes.c_float * (rows * columns)).from_address(z)[:] = [alpha] * (rows * columns)
        return status

    threads = [3]
    functions = [
        MULTIPLY(multiply),
        ctypes.CFUNCTYPE(ctypes.c_int)(lambda: threads[-1]),
        ctypes.CFUNCTYPE(None, ctypes.c_int)(threads.append),
    ]
    kept.append(functions)
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    fake = SimpleNamespace(pointers=Pointers(*addresses, 8, 24, 1, 1 << 20))
    monkeypatch.setattr(methods, "faster_products", lambda: fake)

    state, weights = pt.fmatrix("state"), pt.fmatrix("weights")
    unlike = np.float32(len(kept))  # every case compiles a region of its own
    step = lambda h: (h @ weights.T) * unlike  # noqa: E731
    states = pytensor.scan(step, outputs_info=state, n_steps=2, return_updates=False)
    function = pytensor.function([state, weights], states, mode=array_mode(ArrayLinker(native=True)))
    x, y = matrix(rows, 24), matrix(24, 24)
    expected = np.ones((rows, 24)) if taken and status == 0 else x @ y.T
    np.testing.assert_allclose(function(x, y)[0], unlike * expected, rtol=1e-4, atol=1e-4)
    # The matrix is turned once, before the loop.
    assert calls == ([(b"N", b"N", rows, 24, 24, 1, 24, 24, 0, 24)] * 2 if taken else [])
    assert threads == ([3, 1, 3, 1, 3] if taken else [3])


def test_programs_take_it_for_matrices_of_float32_only(monkeypatch):
    calls = []
    monkeypatch.setattr(
        blas, "faster_products", lambda: lambda x, y, out=None: calls.append(x.dtype) or x @ y
    )
    for dtype in ("float32", "float64"):
        x, v = pt.matrix("x", dtype=dtype), pt.vector("v", dtype=dtype)
        outputs = [x @ x, 2 * (x @ (x + 1)), x - x @ (x + 2), x @ v]
        function = pytensor.function([x, v], outputs, mode=array_mode())
        function(np.eye(3, dtype=dtype), np.ones(3, dtype))
    assert calls == [np.dtype("float32")] * 3
