import functools
import sys
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scalar import basic
from pytensor.tensor.elemwise import Elemwise
from scipy import special

from synk.compile import ArrayLinker, array_funcify, array_mode

UNARY = [
    "abs", "neg", "sign", "ceil", "floor", "trunc", "exp", "exp2", "expm1", "log1p", "sqr", "cos", "sin",
    "tan", "arctan", "cosh", "sinh", "tanh", "arcsinh", "sigmoid", "softplus", "erf", "erfc", "erfcx",
    "isnan", "isinf", "reciprocal",
]  # fmt: skip
POSITIVE = ["log", "log2", "log10", "sqrt", "gamma", "gammaln", "psi", "j0", "j1", "i0", "i1"]
BINARY = [
    "add",
    "sub",
    "mul",
    "true_div",
    "maximum",
    "minimum",
    "lt",
    "gt",
    "le",
    "ge",
    "eq",
    "neq",
    "arctan2",
]


def draw(shape, dtype, seed=0, low=-3.0):
    values = np.random.default_rng(seed).uniform(low, 3.0, shape)
    return np.asarray(values).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("ndim", [0, 2])
def test_unary(compare, dtype, ndim):
    x = pt.tensor("x", dtype=dtype, shape=(None,) * ndim)
    # int8 goes through float16 in NumPy's own dtype rules.
    compare([x], [getattr(pt, name)(x) for name in UNARY], [draw((3, 4)[:ndim], dtype)], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unary_of_positive_numbers(compare, dtype):
    x = pt.matrix("x", dtype=dtype)
    outputs = [getattr(pt, name)(x) for name in POSITIVE] + [
        pt.log1mexp(-x),
        pt.erfinv(x / 4),
        pt.arccos(x / 4),
    ]
    compare([x], outputs, [draw((3, 4), dtype, low=0.1)], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("float32", "float32"),
        ("float64", "float32"),
        ("int8", "float32"),
        ("int64", "float32"),
        ("uint8", "int16"),
    ],
)
@pytest.mark.parametrize("ndim", [0, 2])
def test_binary(compare, left, right, ndim):
    x, y = pt.tensor("x", dtype=left, shape=(None,) * ndim), pt.tensor("y", dtype=right, shape=(None,) * ndim)
    values = [draw((3, 4)[:ndim], left, low=0.5), draw((3, 4)[:ndim], right, 1, low=0.5)]
    compare([x, y], [getattr(pt, name)(x, y) for name in BINARY], values, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["int64", "int8", "float32"])
def test_integer_division_and_remainder_round_down(compare, dtype):
    x, y = pt.vector("x", dtype=dtype), pt.vector("y", dtype=dtype)
    values = [np.array([7, -7, 7, -7, 6], dtype), np.array([2, 2, -2, -2, 3], dtype)]
    compare([x, y], [x // y, x % y, pt.int_div(x, y), pt.mod(x, y), x**2], values)


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_bitwise_and_logical(compare, dtype):
    x, y = pt.vector("x", dtype=dtype), pt.vector("y", dtype=dtype)
    values = [np.array([0, 1, 1, 0], dtype), np.array([0, 1, 0, 1], dtype)]
    compare([x, y], [x & y, x | y, x ^ y, ~x, pt.and_(x, y), pt.or_(x, y), pt.invert(y)], values)


def test_three_and_more_terms_broadcast(compare):
    x, row, column = pt.matrix("x"), pt.row("row"), pt.col("column")
    values = [np.arange(12.0).reshape(3, 4), np.ones((1, 4)), np.arange(3.0).reshape(3, 1)]
    values = [value.astype(variable.dtype) for value, variable in zip(values, (x, row, column), strict=False)]
    compare([x, row, column], [row + column + x, column * row * x, pt.add(row, row, x)], values)


def test_terms_of_different_dtypes(compare):
    a, b, c = pt.vector("a", dtype="int8"), pt.vector("b", dtype="int32"), pt.vector("c", dtype="float32")
    values = [np.full(3, 9, "int8"), np.full(3, 1000, "int32"), np.ones(3, "float32")]
    compare([a, b, c], [pt.add(a, a, b), pt.add(a, b, c), pt.mul(a, a, c)], values)


def test_choice_clip_fill_and_casts(compare):
    x, y = pt.matrix("x", dtype="float32"), pt.row("y", dtype="float64")
    values = [draw((3, 4), "float32"), draw((1, 4), "float64")]
    outputs = [
        pt.switch(x > 0, x, y),
        pt.clip(x, -1, 1),
        pt.clip(x, y, y + 1),
        pt.second(x, y),
        pt.fill(x, 2),
    ]
    outputs += [pt.cast(x, dtype) for dtype in ("float64", "int32", "bool", "float32")]
    outputs += [basic_elemwise(basic.identity, x)]
    outputs += [pt.round(x), pt.round(x, mode="half_away_from_zero")]
    compare([x, y], outputs, values)


def basic_elemwise(scalar_op, *inputs):
    return Elemwise(scalar_op)(*inputs)


@pytest.mark.parametrize("ndim", [0, 2])
def test_copies_are_copies(compare, ndim):
    x = pt.tensor("x", dtype="float64", shape=(None,) * ndim)
    i = pt.tensor("i", dtype="int64", shape=(None,) * ndim)
    same = Elemwise(basic.Cast(basic.float64))(x)
    values = [draw((3, 4)[:ndim], "float64"), draw((3, 4)[:ndim], "int64")]
    compare([x, i], [basic_elemwise(basic.identity, x), same, x.real, pt.conj(x)], values)


def test_complex_numbers(compare):
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    z = pt.complex(x, y)
    compare(
        [x, y],
        [z, pt.abs(z), pt.real(z), pt.imag(z), pt.conj(z), z * z],
        [draw(4, "float64"), draw(4, "float64", 1)],
    )


def test_special_values_pass_quietly(compare):
    x = pt.vector("x")
    values = [np.array([0.0, -1.0, np.inf, -np.inf, np.nan], x.dtype)]
    compare(
        [x], [1 / x, pt.log(x), pt.sqrt(x), pt.maximum(x, 0), pt.exp(x), pt.softplus(x), pt.sign(x)], values
    )


@pytest.mark.parametrize(("scalar_op", "n"), [(basic.add, 2), (basic.mul, 3), (basic.exp, 1), (basic.add, 4)])
@pytest.mark.parametrize("last", [False, True])
def test_in_place_writes_to_the_destroyed_input(scalar_op, n, last):
    inputs = [pt.matrix(f"x{i}", dtype="float64") for i in range(n)]
    destroyed = n - 1 if last else 0
    output = Elemwise(scalar_op, {0: destroyed})(*inputs)
    ins = [pytensor.In(v, mutable=i == destroyed, borrow=True) for i, v in enumerate(inputs)]
    bare = Mode(ArrayLinker(), RewriteDatabaseQuery(include=["minimum_compile"]))
    function = pytensor.function(ins, pytensor.Out(output, borrow=True), mode=bare, accept_inplace=True)
    values = [draw((2, 3), "float64", i) for i in range(n)]
    expected = Elemwise(scalar_op)(*[pt.constant(value) for value in values]).eval(mode="FAST_COMPILE")
    result = function(*values)
    np.testing.assert_allclose(result, expected)
    assert result is values[destroyed]


def test_undeclared_broadcasting_is_refused():
    x, y = pt.matrix("x"), pt.matrix("y")
    function = pytensor.function([x, y], x * y + 1, mode=Mode(ArrayLinker(), "fast_compile"))
    with pytest.raises(ValueError, match="specify_broadcastable"):
        function(np.ones((3, 4), x.dtype), np.ones((1, 4), x.dtype))


def test_scalar_op_without_a_ufunc_runs_on_the_host(compare):
    x = pt.vector("x")
    compare([x], [pt.tri_gamma(x)], [draw(4, x.dtype, low=0.5)], host=True, rtol=1e-5)


@pytest.mark.parametrize("module", ["scipy.special", "ufuncs_of_a_user"])
def test_a_ufunc_may_be_of_any_package(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "ufuncs_of_a_user", SimpleNamespace(expit=special.expit))
    op = basic.UnaryScalarOp(basic.same_out, name="logistic")
    monkeypatch.setattr(op, "nfunc_spec", (f"{module}.expit", 1, 1), raising=False)
    x = pt.dvector("x")
    f = pytensor.function([x], Elemwise(op)(x), mode=array_mode(ArrayLinker(host_ops="raise", native=False)))
    np.testing.assert_array_equal(f([0.0, 1.0]), special.expit([0.0, 1.0]))


def test_complex_error_function_runs_on_the_host_of_a_device(device):
    z = pt.zvector("z")
    function = pytensor.function([z], pt.erf(z), mode=array_mode(ArrayLinker(device)))
    assert [str(node.op) for node in function.vm.jit_fn.host_nodes] == ["Erf"]
    values = np.array([0.5 + 1j, -2 + 0.1j])
    np.testing.assert_allclose(function(values), special.erf(values), rtol=1e-12)


@pytest.mark.parametrize("places", [(0,), (1,), (2,), (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("op", [pt.add, pt.mul])
def test_sums_and_products_into_any_of_their_terms(op, places):
    shapes = [(3, 4) if i in places else shape for i, shape in enumerate([(1, 1), (1, 4), (3, 1)])]
    types = [
        pt.tensor(dtype="float64", shape=tuple(1 if n == 1 else None for n in shape)) for shape in shapes
    ]
    node = op(*types).owner
    if not places:
        node = op(*types, pt.dmatrix()).owner
        shapes.append((3, 4))
    generator = np.random.default_rng(0)
    out = generator.normal(size=(3, 4))
    values = [out if i in places else generator.normal(size=shape) for i, shape in enumerate(shapes)]
    copies = [value.copy() for value in values]
    expected = functools.reduce(np.add if op is pt.add else np.multiply, copies)
    implementation = array_funcify(node.op, node, np)
    np.testing.assert_allclose(implementation(*copies), expected, rtol=1e-15)
    assert implementation(*values, out=out) is out
    np.testing.assert_allclose(out, expected, rtol=1e-15)
