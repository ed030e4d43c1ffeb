"""Fused graphs against PyTensor's own linker; kernels with all shapes, strides, ``out=`` and in place."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scalar import basic, math
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from support.cuda.provider import bridged, needs_emulator
from support.regions.alone import region_of
from synk.compile import ArrayLinker, array_funcify, array_mode
from synk.compile.dispatch.elemwise import unfused
from synk.compile.native.compiler import find_compiler
from synk.compile.native.libraries import native_libraries
from synk.compile.programs.elementwise.fusion import TAG

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

a, b = basic.float64("a"), basic.float64("b")
TWO = Composite([a, b], [a * b + 2.0, a - b])  # two outputs

FUSED = array_mode(ArrayLinker(host_ops="raise", native=False)).including(TAG)


def node_of(scalar_op, shapes, inplace=None, dtype="float64"):
    inputs = [TensorType(dtype, shape)() for shape in shapes]
    return Elemwise(scalar_op, inplace or {}).make_node(*inputs)


def kernel_of(*arguments, **keywords):
    node = node_of(*arguments, **keywords)
    function, places = region_of(node), node.op.inplace_pattern
    if not places:
        return function
    return lambda *inputs: function(*inputs, out=tuple([inputs[places[k]] for k in sorted(places)]))


def plain_of(*arguments, **keywords):
    return unfused(node_of(*arguments, **keywords), np)


IMPLEMENTATIONS = [
    pytest.param(kernel_of, marks=needs_compiler, id="kernel"),
    pytest.param(plain_of, id="plain"),
]


@pytest.fixture(params=[*IMPLEMENTATIONS, pytest.param(None, marks=needs_emulator, id="cuda")])
def make(request):
    """Return a way to make an implementation on NumPy's arrays; kernels in CUDA run on the emulator."""
    if request.param is not None:
        return request.param
    cupy = request.getfixturevalue("cupy")

    def on_emulator(*arguments, **keywords):
        node = node_of(*arguments, **keywords)
        return bridged(array_funcify(node.op, node, cupy))

    return on_emulator


def composites(function):
    return [node for node in function.maker.fgraph.apply_nodes if is_composite(node)]


def is_composite(node):
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Composite)


@needs_compiler
def test_a_chain_becomes_one_kernel(compare):
    x, row, column = [make(dtype="float32") for make in (pt.matrix, pt.row, pt.col)]
    y = pt.maximum(pt.exp(x * 0.5 - row) / column, 0.25) ** 2
    values = [np.random.default_rng(0).standard_normal(s).astype("float32") for s in ((5, 7), (1, 7), (5, 1))]
    compare([x, row, column], [y], values)
    function = pytensor.function([x, row, column], y, mode=FUSED)
    assert len(function.maker.fgraph.apply_nodes) == len(composites(function)) == 1


@needs_compiler
@pytest.mark.parametrize(("apart", "dtype"), [(pt.tri_gamma, "float32"), (lambda x: x**x, "float64")])
def test_what_has_no_template_stays_outside(compare, apart, dtype):
    x = pt.vector("x", dtype=dtype)
    output = apart(x * 0.5 + 0.125) * 2 - x
    compare([x], [output], [np.array([0.25, 0.5], dtype)])
    function = pytensor.function([x], output, mode=FUSED)
    inner = {type(n.op) for node in composites(function) for n in node.op.scalar_op.fgraph.apply_nodes}
    assert type(apart(x).owner.op.scalar_op) not in inner
    assert inner


def test_ops_without_template_are_not_taken_for_each_other(compare):
    x = pt.dvector("x")
    value = np.linspace(1.5, 3, 7)
    # Two of one input, around what is fused: a rewrite merges equal nodes of equal inputs.
    y = pt.exp(x) + pt.sqrt(x)
    one, other = pt.tri_gamma, pt.arccosh
    compare([x], [one(y) * 2 + 1, other(y) * 2 + 1, one(x) - other(x)], [value])


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_all_strides(make, order):
    call = make(TWO, [(None, None, None)] * 2)
    base = np.random.default_rng(1).standard_normal((6, 8, 10)).copy(order)
    views = [base[::2, ::-1, 1:6], base[:3, :, 5:], np.broadcast_to(base[0, 0, :5], (3, 8, 5))]
    views += [base.transpose(2, 1, 0)[:3, :, :5], base[3:0:-1, :, 9:4:-1]]
    for x in views:
        for y in views:
            product, difference = call(x, y)
            np.testing.assert_array_equal(product, x * y + 2.0)
            np.testing.assert_array_equal(difference, x - y)


@st.composite
def broadcast_shapes(draw):
    full = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    patterns = [draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full))) for _ in range(2)]
    return [tuple(1 if one else n for n, one in zip(full, p, strict=True)) for p in patterns], patterns


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(case=broadcast_shapes())
def test_declared_broadcasting(make, case):
    shapes, patterns = case
    x, y = (np.arange(float(np.prod(shape))).reshape(shape) - 3 for shape in shapes)
    declared = [tuple(1 if one else None for one in pattern) for pattern in patterns]
    product, difference = make(TWO, declared)(x, y)
    np.testing.assert_array_equal(product, x * y + 2.0)
    np.testing.assert_array_equal(difference, x - y)


@needs_compiler
@pytest.mark.parametrize("shapes", [((3, 4), (1, 4)), ((3, 4), (3, 5)), ((1, 4), (3, 4)), ((0, 4), (1, 4))])
def test_undeclared_broadcasting_is_refused(shapes):
    call = kernel_of(TWO, [(None, None)] * 2)
    with pytest.raises(ValueError, match="differ along axis"):
        call(*map(np.ones, shapes))


@pytest.mark.parametrize("scalar_op", [TWO, Composite([a, b], [basic.exp(a) * b])], ids=["two", "one"])
def test_out(make, scalar_op):
    call = make(scalar_op, [(None, None)] * 2)
    x, y = np.random.default_rng(2).standard_normal((2, 4, 6))
    expected = call(x, y)
    several = isinstance(expected, tuple)
    for targets in [
        np.empty((2, 4, 6)),
        np.empty((2, 6, 4)).swapaxes(1, 2),
        np.empty((2, 8, 12))[:, ::2, ::-2],
    ]:
        out = tuple(targets) if several else targets[0]
        results = call(x, y, out=out)
        assert results is out or all(r is o for r, o in zip(results, out, strict=True))
        # Vectors and single numbers have an exponential each: libmvec promises four units in the last place.
        np.testing.assert_allclose(out, expected, rtol=4.5 * np.finfo(x.dtype).eps)
    if several and make is not plain_of:  # which is given all of them or none
        product, _ = call(x, y, out=(None, targets[1]))
        np.testing.assert_array_equal(product, x * y + 2.0)
    wrong = np.empty((4, 5))
    with pytest.raises(ValueError, match="shape"):
        call(x, y, out=(wrong, np.empty((4, 6))) if several else wrong)
    # Exactly one of the inputs.
    first = x.copy()
    call(first, y, out=(first, np.empty_like(x)) if several else first)
    np.testing.assert_array_equal(first, expected[0] if several else expected)


@needs_compiler
def test_wrong_out_is_refused():
    call = kernel_of(basic.Composite([a, b], [a * b + a]), [(None,)] * 2)
    x, fixed = np.ones(3), np.ones(3)
    fixed.flags.writeable = False
    for out, said in ((np.empty(4), r"shape \(3,\), .* \(4,\)"), (fixed, "read-only")):
        with pytest.raises(ValueError, match=said):
            call(x, x, out=out)


def test_in_place_both_outputs(make):
    call = make(TWO, [(None, None), (None, None)], {0: 1, 1: 0})
    x, y = np.random.default_rng(3).standard_normal((2, 4, 600))
    before = x.copy(), y.copy()
    product, difference = call(x, y)
    assert product is y
    assert difference is x
    np.testing.assert_array_equal(product, before[0] * before[1] + 2.0)
    np.testing.assert_array_equal(difference, before[0] - before[1])


@needs_compiler
def test_arrays_that_are_not_plain():
    call = kernel_of(TWO, [(None,)] * 2)
    x = np.arange(5.0)
    bytes_ = np.zeros(41, "uint8")
    odd = bytes_[1:].view("float64")  # not aligned
    odd[:] = x
    swapped, subclass = x.astype(">f8"), x.view(np.memmap)
    for values in (odd, swapped, subclass):
        product, difference = call(values, x)
        assert type(product) is np.ndarray
        np.testing.assert_array_equal(product, x * x + 2.0)
        np.testing.assert_array_equal(difference, np.zeros(5))
    call(x, x, out=(odd, np.empty(5)))
    np.testing.assert_array_equal(odd, x * x + 2.0)


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
def test_scalars(make):
    call = make(TWO, [()] * 2)
    for value in (np.float64(3), np.array(3.0)):
        product, difference = call(value, np.float64(2))
        assert (product, difference) == (8, 1)


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
def test_outputs_that_ignore_an_input_have_the_common_shape(make):
    scalar_op = Composite([a, b], [basic.exp(b), basic.identity(a), basic.exp(b)])
    x, y = np.ones((3, 4)), np.arange(4.0).reshape(1, 4)
    results = make(scalar_op, [(None, None), (1, None)])(x, y)
    for result, expected in zip(results, [np.exp(y) + 0 * x, x, np.exp(y) + 0 * x], strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-15)
        assert result.shape == (3, 4)
    assert not any(np.shares_memory(result, other) for result in results for other in (x, y))


@pytest.mark.parametrize("dtype", ["complex128", "float16"])
def test_without_template_a_composite_runs_on_arrays(dtype):
    scalars = [basic.get_scalar_type(dtype)() for _ in range(2)]
    scalar_op = Composite(scalars, [basic.mul(*scalars) + scalars[0], basic.sqr(scalars[1])])
    inputs = [pt.vector(dtype=dtype) for _ in range(2)]
    mode = Mode(ArrayLinker(host_ops="raise"), RewriteDatabaseQuery(include=["minimum_compile"]))
    function = pytensor.function(inputs, Elemwise(scalar_op)(*inputs), mode=mode)
    x, y = np.array([1, 2], dtype), np.array([3, 4], dtype)
    first, second = function(x, y)
    np.testing.assert_array_equal(first, x * y + x)
    np.testing.assert_array_equal(second, y * y)


@needs_compiler
@pytest.mark.parametrize("scalar_op", [math.sigmoid, math.softplus, basic.round_half_away_from_zero], ids=str)
def test_scalar_ops_without_a_ufunc_work_in_place(scalar_op):
    def by_arrays(*arguments):
        node = node_of(*arguments)
        return array_funcify(node.op, node, np)

    x = np.linspace(-3, 3, 50)
    expected = kernel_of(scalar_op, [(None,)])(x)
    for make in (kernel_of, by_arrays):
        values = x.copy()
        assert make(scalar_op, [(None,)], {0: 0})(values) is values
        np.testing.assert_allclose(values, expected, rtol=1e-14)
        out = np.empty(50)
        assert make(scalar_op, [(None,)])(x, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-14)


@needs_compiler
def test_inner_graphs_are_fused_too():
    from pytensor.compile.builders import OpFromGraph

    x = pt.vector("x")
    op = OpFromGraph([x], [pt.exp(x) * 2 + x])
    function = pytensor.function([x], op(x) * 1, mode=FUSED)
    np.testing.assert_allclose(function([0.0, 1.0]), [2.0, 2 * np.e + 1])


@needs_compiler
def test_kernels_of_one_program_are_compiled_together(monkeypatch, tmp_path):
    libraries, calls = native_libraries(), []
    make = libraries.make
    monkeypatch.setattr(libraries, "make", lambda texts: calls.extend(texts) or make(texts))
    monkeypatch.setattr(libraries.store, "folder", tmp_path)
    x = pt.vector("x")
    constant = float(np.random.default_rng().uniform())  # kernels that nobody has seen
    between = pt.tri_gamma(pt.exp(x) * constant + 1)  # has no text
    pytensor.function([x], (pt.exp(between) - constant).sum(), mode=array_mode())(np.ones(2, x.dtype))
    (text,) = calls
    assert len(text.names) == 2
