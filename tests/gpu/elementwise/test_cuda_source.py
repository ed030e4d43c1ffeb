"""CUDA text of every kernel, compiled for a GPU that need not be there."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scalar import basic
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from support.cases.kernels import ALL, CASES, FLOATS, INTEGERS, MIXED, MIXED_OPS, arity
from support.cuda.nvrtc import compile_cuda
from synk.compile import ArrayLinker, array_mode
from synk.compile.programs.elementwise import has_template
from synk.compile.programs.elementwise.body import elemwise_body
from synk.compile.programs.elementwise.fusion import TAG
from synk.extensions import updates
from synk.gpu.elementwise import cuda_source, philox_source
from synk.gpu.elementwise.cuda_dialect import CUDA
from synk.ops.activation import rectify


def body(scalar_op, dtypes, shape=(None,)):
    node = Elemwise(scalar_op)(*[TensorType(dtype, shape)() for dtype in dtypes], return_list=True)[0].owner
    return elemwise_body(node, CUDA)


def check(bodies):
    names = [f"kernel{i}" for i in range(len(bodies))]
    code = compile_cuda("\n".join(map(cuda_source.source, bodies, names)))
    for name in names:
        assert f"{name}_flat".encode() in code
        assert f"{name}_strided".encode() in code


@pytest.mark.parametrize("dtype", ALL)
def test_templates_of(dtype):
    check([body(op, [dtype] * arity(op)) for op, kind in CASES if kind == dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_that_c_leaves_to_numpy(dtype):
    check([body(basic.pow, [dtype] * 2), body(basic.arccosh, [dtype])])


def test_casts():
    check([body(basic.Cast(basic.get_scalar_type(target)), [source]) for source in ALL for target in ALL])


def test_mixed_dtypes():
    check(
        [
            body(op, dtypes)
            for op in MIXED_OPS
            for dtypes in MIXED
            if op is not basic.sub or "bool" not in dtypes
        ]
    )


def test_broadcasting_several_outputs_and_constants():
    x, y = basic.float32("x"), basic.int8("y")
    infinite = basic.constant(float("-inf"), dtype="float32")
    both = basic.Composite([x, y], [basic.maximum(x * y, infinite), basic.exp(x)])
    for shapes in [((None, None), (1, None)), ((None, 1, 3), (1, 2, 1)), ((), ()), ((1, 1), (1, 1))]:
        inputs = [TensorType(d, s)() for d, s in zip(("float32", "int8"), shapes, strict=True)]
        check([elemwise_body(Elemwise(both)(*inputs, return_list=True)[0].owner, CUDA)])


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_arrays_of_16_bits_are_converted_as_they_are_read_and_written(stored):
    x, y = basic.float32("x"), basic.float32("y")
    both = basic.Composite([x, y], [basic.maximum(x * y, x), x > y])
    kinds = [TensorType("float32", shape)() for shape in ((None, None), (1, None))]
    node = Elemwise(both)(*kinds, return_list=True)[0].owner
    whole = elemwise_body(node, CUDA, ["", stored], [stored, ""])
    check([whole, elemwise_body(node, CUDA, [stored, ""], ["", ""]), elemwise_body(node, CUDA)])
    text = cuda_source.source(whole, "kernel")
    assert "const float *p0, const unsigned short *p1, unsigned short *p2, unsigned char *p3" in text
    assert f"const float x1 = from_{stored}(p1[i]);" in text
    assert f"p2[i] = to_{stored}(y0);" in text
    assert "unsigned short" not in cuda_source.source(elemwise_body(node, CUDA), "kernel")


RULES = ["sgd", "nesterov_momentum", "adagrad", "rmsprop", "adadelta", "adam", "adamax"]


@pytest.mark.parametrize("rule", RULES)
def test_kernels_of_training(rule):
    x, mask, y = pt.fmatrix("x"), pt.fmatrix("mask"), pt.ivector("y")
    shapes = {"w1": (5, 4), "b1": (4,), "w2": (4, 3)}
    w1, b1, w2 = [pytensor.shared(np.ones(shape, "float32"), name) for name, shape in shapes.items()]
    hidden = pt.maximum(x @ w1 + b1, 0) * mask
    loss = -pt.special.log_softmax(pt.tanh(hidden) @ w2, axis=1)[pt.arange(y.shape[0]), y].mean()
    gradient, update, _ = getattr(updates, rule)(loss, [w1, b1, w2], learning_rate=0.1)
    bodies = {}
    for pairs in (gradient, update):
        function = pytensor.function(
            [x, mask, y],
            [],
            updates=[entry[:2] for entry in pairs],
            mode=array_mode(ArrayLinker(native=False)).including(TAG),
            on_unused_input="ignore",
        )
        for node in function.maker.fgraph.apply_nodes:
            if isinstance(getattr(node.op, "scalar_op", None), basic.Composite):
                body = elemwise_body(node, CUDA)
                bodies[cuda_source.source(body, "kernel")] = body
    assert bodies
    check(list(bodies.values()))


@pytest.mark.parametrize(
    ("kind", "dtypes"),
    [
        *[(kind, FLOATS) for kind in philox_source.REAL],
        ("integers", ["bool", *INTEGERS]),
        ("bernoulli", ["bool", "int64", "float32"]),
    ],
)
def test_random_numbers(kind, dtypes):
    for dtype in dtypes:
        code = compile_cuda(philox_source.source(kind, dtype))
        assert philox_source.kernel_name(kind, dtype).encode() in code


def test_compiler_refuses_what_is_no_cuda():
    with pytest.raises(AssertionError, match="undefined"):
        compile_cuda('extern "C" __global__ void f(float *x) { *x = nothing; }')


def test_cuda_has_the_functions_that_c_has():
    for op, dtype in CASES:
        variables = [TensorType(dtype, (None,))() for _ in range(arity(op))]
        assert has_template(Elemwise(op)(*variables).owner, CUDA)


def test_the_rectifier_of_networks_has_a_template_too():
    assert has_template(rectify(pt.matrix("x", dtype="float32")).owner, CUDA)
