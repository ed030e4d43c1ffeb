"""Every template against NumPy, in every dtype that it covers, on all pairs of awkward numbers."""

import warnings
from functools import cache

import numpy as np
import pytest
from pytensor.scalar import basic, math
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from support.cases.kernels import ALL, CASES, EXACT, MIXED, MIXED_OPS, ROUNDED, arguments, arity, awkward
from support.cuda import emulator
from support.cuda.provider import needs_emulator
from support.cupy import stand_in
from support.regions.alone import region_of
from synk.compile.native.compiler import find_compiler
from synk.compile.programs.elementwise import NoTemplate, has_template, template
from synk.compile.programs.elementwise.body import elemwise_body
from synk.compile.programs.elementwise.dialect import native_dialect


def node_of(scalar_op, *dtypes):
    return Elemwise(scalar_op).make_node(*[TensorType(dtype, (None,))() for dtype in dtypes])


class Batch:
    """Loops of many scalar Ops: one for all that take the same values, for the compiler's time."""

    def __init__(self, dialect, make):
        self.dialect, self.make, self.made = dialect, make, {}

    def add(self, ops, *dtypes):
        scalars = [basic.get_scalar_type(dtype)() for dtype in dtypes]
        outputs = [op(*scalars[: arity(op)]) for op in ops]
        node = node_of(basic.Composite(scalars, outputs), *dtypes)
        self.made[dtypes] = (
            dict(zip(ops, range(len(ops)), strict=True)),
            self.make(node),
        )

    def __call__(self, scalar_op, dtypes, values):
        position, call = self.made[dtypes]
        values = [*values, *(np.zeros(len(values[0]), dtype) for dtype in dtypes[len(values) :])]
        return call(*values)[position[scalar_op]]


def in_c():
    if find_compiler() is None:
        pytest.skip("there is no C compiler")

    def make(node):
        function = region_of(node)
        return function if len(node.outputs) > 1 else lambda *values: (function(*values),)

    return Batch(native_dialect(), make)


def in_cuda():
    # Imported here: what is tested on cores does without synk.gpu.
    from synk.gpu.elementwise.cuda_dialect import CUDA
    from synk.gpu.elementwise.cuda_kernels import CupyKernels

    kernels = CupyKernels(emulator)

    def make(node):
        kernel = kernels.kernel(node, None)

        def call(*values):
            results = [np.empty(len(values[0]), output.type.dtype) for output in node.outputs]
            assert kernel.function(*map(stand_in.ndarray, [*values, *results])) == 0
            return results

        return call

    return Batch(CUDA, make)


PLACES = [pytest.param(in_c, id="C"), pytest.param(in_cuda, id="CUDA", marks=needs_emulator)]


@pytest.fixture(scope="module", params=PLACES)
def run(request):
    made = request.param()
    for dtype in ALL:
        made.add([op for op, kind in CASES if kind == dtype], dtype, dtype, dtype)
        made.add([cast_to(target) for target in ALL], dtype)
    for dtypes in MIXED:
        made.add([op for op in MIXED_OPS if dtypes in mixed(op)], *dtypes)
    return made


@cache
def cast_to(dtype):
    return basic.Cast(basic.get_scalar_type(dtype))


def mixed(scalar_op):
    return [dtypes for dtypes in MIXED if scalar_op is not basic.sub or "bool" not in dtypes]


def quiet(function, *values):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*values)


@pytest.mark.parametrize(("scalar_op", "dtype"), [case for case in CASES if case[0] in EXACT], ids=str)
def test_exact(run, scalar_op, dtype):
    values = arguments(dtype, arity(scalar_op))
    result = run(scalar_op, (dtype,) * 3, values)
    expected = quiet(EXACT[scalar_op][0], *values).astype(result.dtype)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_a_quotient_of_a_negative_beside_that_of_the_number_itself_is_numpys(dtype):
    x, two = basic.get_scalar_type(dtype)(), basic.constant(2, dtype=dtype)
    outputs = [basic.int_div(basic.neg(x), two), basic.int_div(x, two), basic.mod(x, two)]
    value = awkward(dtype)
    found = region_of(node_of(basic.Composite([x], outputs), dtype))(value)
    assert np.iinfo(dtype).min in value
    for one, other in zip(found, quiet(lambda x: [-x // 2, x // 2, x % 2], value), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize(("scalar_op", "dtype"), [case for case in CASES if case[0] in ROUNDED], ids=str)
def test_rounded(run, scalar_op, dtype):
    values = arguments(dtype, arity(scalar_op))
    result = run(scalar_op, (dtype,) * 3, values)
    expected = quiet(ROUNDED[scalar_op], *values)
    # SciPy's erfc is off by tens of units in the last place in its tail.
    units = 64 if scalar_op is math.erfc else 8
    limits = np.finfo(dtype)
    np.testing.assert_allclose(result, expected, rtol=units * limits.eps, atol=units * limits.tiny)


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("source", ALL)
def test_casts(run, source, target):
    (values,) = arguments(source, 1)
    result = run(cast_to(target), (source,), [values])
    np.testing.assert_array_equal(result, quiet(np.ndarray.astype, values, target))


@pytest.mark.parametrize(
    ("scalar_op", "dtypes"), [(op, dtypes) for op in MIXED_OPS for dtypes in mixed(op)], ids=str
)
def test_mixed_dtypes(run, scalar_op, dtypes):
    grids = np.meshgrid(*map(awkward, dtypes))
    left, right = [np.ascontiguousarray(values).ravel() for values in grids]
    result = run(scalar_op, dtypes, [left, right])
    expected = quiet(EXACT[scalar_op][0], left, right)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("scalar_op", "dtypes"),
    [
        (basic.pow, ["int64", "int64"]),  # NumPy refuses negative exponents
        (basic.exp, ["float16"]),
        (basic.add, ["complex128", "complex128"]),
        (basic.lt, ["int64", "uint64"]),
        (math.polygamma, ["int64", "float64"]),
    ],
    ids=str,
)
def test_no_template(run, scalar_op, dtypes):
    node = node_of(scalar_op, *dtypes)
    assert not has_template(node, run.dialect)
    with pytest.raises(NoTemplate):
        elemwise_body(node, run.dialect)


def test_the_table_is_open(run):
    class Half(basic.UnaryScalarOp):
        def output_types(self, types):
            return types

    assert not has_template(node_of(Half(), "float32"), run.dialect)
    template.register(
        Half, lambda scalar_op, write, inputs, dtype: f"{inputs[0]} / {write.literal(2, dtype)}"
    )
    half = Half()
    run.add([half], "float32")
    assert run(half, ("float32",), [np.array([1, 3], "float32")]).tolist() == [0.5, 1.5]
