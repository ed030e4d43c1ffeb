"""Tables of Ops: all Ops are in those that they need, and what takes ``out=`` writes there the same bits.

A new Op fails these tests until someone has decided: `synk.compile.tables` says what each table is for.
"""

import importlib
import inspect
import pkgutil

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.op import Op
from pytensor.scalar import xor
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm, Gemv
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot, Sum

import synk
import synk.compile.dispatch.sparse
import synk.compile.dispatch.typed_list
import synk.ops
from synk.compile import tables
from synk.compile.compat import Ger
from synk.compile.dispatch import array_funcify, import_entry
from synk.compile.programs import elementwise
from synk.compile.tables import accepts_out
from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.collectives.marks import Mark
from synk.ops import layout
from synk.ops.image import ImageOp
from synk.ops.kernel_op import KernelOp

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


# --- each table that an Op needs ------------------------------------------------------------------


BASES = {
    "CollectiveOp",
    "ReducingOp",
    "ImageOp",
    "Mark",
    "ImageGradient",
    "KernelOp",
    "BatchNormOp",
    "GroupNormOp",
    "LayoutOp",
    "ConvolutionOp",
    "ConvolutionGradient",
    "PoolingOp",
    "PoolingGradient",
    "ResamplingOp",
    "EdgesOp",
}
OF_THE_REFERENCE = {"ByNumPy"}  # what `check="first"` compares with runs in PyTensor's own linker
FUNCTIONS = ("array_funcify", "side", "host_inputs", "free_inputs", "width", "goes_by_dtype", "flops_of")

ROWS = ("OwnRows", "HasRows")  # what they pass on is as wide as it comes

# By table, the Ops of `synk.ops` and `synk.exact` that need no entry, and why.
OF_OURS = {
    "array_funcify": set(),
    "side": {KernelOp, Mark, *ROWS},  # arrays, on the device
    # Of the others, gradients alone take lengths.
    "host_inputs": {
        Mark,
        "After",
        "AvgPool2d",
        "BatchNorm",
        "BatchNormGradient",
        "Conv2d",
        "ConvTranspose2d",
        "GlobalAvgPool2d",
        "GroupNorm",
        "GroupNormGradient",
        "LayerNorm",
    }
    | {"LayerNormGradient", "MaxPool2d", "MaxPool2dChosen", "Upsample2d", "SoftmaxCrossEntropy"}
    | {"SoftmaxCrossEntropyGradient"},
    "free_inputs": {KernelOp, CollectiveOp, Mark, *ROWS},  # they read arrays
    "width": {"After", CollectiveOp, Mark, *ROWS},  # collectives are those of float32
    "goes_by_dtype": {"After", CollectiveOp, Mark, *ROWS},
    # Products are counted; what passes over memory has next to no arithmetic.
    "flops_of": {"After", CollectiveOp, Mark, *ROWS}
    | {"Crop2d", "Pad2d", "MaxPool2dChosen", "Upsample2d", "Upsample2dGradient"}
    | {"AvgPool2d", "AvgPool2dGradient", "BatchNorm", "BatchNormGradient"}
    | {
        "GlobalAvgPool2d",
        "GroupNorm",
        "GroupNormGradient",
        "LayerNorm",
        "LayerNormGradient",
        "MaxPool2d",
        "MaxPool2dGradient",
    }
    | {"SoftmaxCrossEntropy", "SoftmaxCrossEntropyGradient"},
}

# The same of PyTensor's Ops, by the module that defines them or by name.
LINEAR_ALGEBRA = {"linalg", "blas", "blockwise", "signal"}
APART = {
    "sparse",
    "typed_list",
    "scalar",
}  # no arrays of axes: the side that has them is found by their types
OF_PYTENSOR = {
    "side": LINEAR_ALGEBRA
    | APART
    | {"Dot", "Choose", "PermuteRowElements", "Nonzero", "ExtractDiag", "Repeat", "Unique", "SearchsortedOp"}
    | {"CpuContiguous", "FillDiagonal", "FillDiagonalOffset", "AdvancedIncSubtensor1", "Bartlett"}
    | {"RavelMultiIndex", "UnravelIndex", "Softmax", "LogSoftmax"},
    "host_inputs": {"linalg", "Dot22", "Dot22Scalar", "BatchedDot", "Ger", "Dot"}
    | APART
    | {"Argmax", "CAReduce", "CumOp", "Elemwise", "Softmax", "LogSoftmax"}
    | {"Choose", "PermuteRowElements", "Nonzero", "ExtractDiag", "FillDiagonal", "SearchsortedOp", "Unique"}
    | {"DimShuffle", "JoinDims", "Shape", "Shape_i", "CpuContiguous", "DeepCopyOp", "TypeCastingOp"}
    | {"MakeVector", "TensorFromScalar", "ScalarFromTensor", "AdvancedSubtensor1", "AdvancedIncSubtensor1"},
}


def classes():
    """Return the Op classes of `synk.ops` and `synk.exact`, but for bases and those of the reference."""
    packages = [importlib.import_module(name) for name in ("synk.ops", "synk.exact")]
    names = [
        one.name for each in packages for one in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")
    ]
    found = {
        one for name in names for one in vars(importlib.import_module(name)).values() if inspect.isclass(one)
    }
    ours = [
        one
        for one in found
        if issubclass(one, Op) and one.__module__.startswith(("synk.ops.", "synk.exact."))
    ]
    return sorted(
        (one for one in ours if one.__name__ not in BASES | OF_THE_REFERENCE), key=lambda one: one.__name__
    )


def entered(table, op_class):
    """Tell whether a class, or one that it derives from, has an entry."""
    return table.dispatch(op_class) not in (table.dispatch(object), import_entry)


def exempt(op_class, allowed):
    """Tell whether a class is allowed to have no entry: itself, by its name, its base or its module."""
    parts = {op_class.__name__, *op_class.__module__.split(".")}
    return bool(parts & {one for one in allowed if isinstance(one, str)}) or issubclass(
        op_class, tuple(one for one in allowed if not isinstance(one, str))
    )


ARRAY_OPS = [one for one in classes() if not issubclass(one, ScalarOp)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_op_of_ours_is_in_each_table_that_it_needs(name):
    table, allowed = getattr(tables, name), OF_OURS[name]
    missing = [one.__name__ for one in ARRAY_OPS if not entered(table, one) and not exempt(one, allowed)]
    assert not missing, f"enter them in {name}, or say in OF_OURS why they need no entry"
    needless = {one for one in allowed if isinstance(one, str)} - {
        one.__name__ for one in ARRAY_OPS if not entered(table, one)
    }
    assert not needless, "they have an entry, or are no more"


def test_a_scalar_op_of_ours_has_a_ufunc_and_a_template():
    for one in set(classes()) - set(ARRAY_OPS):
        for table in (tables.array_scalar, elementwise.template):
            assert table.dispatch(one) is not table.dispatch(object), (one, table)


def test_an_op_on_images_says_what_it_does_with_channels_last():
    for one in ARRAY_OPS:
        if issubclass(one, ImageOp):
            assert layout.converted.dispatch(one) is not layout.converted.dispatch(object)


@pytest.mark.parametrize("name", OF_PYTENSOR)
def test_an_entry_for_an_op_of_pytensor_is_in_each_table_that_it_needs(name):
    table = getattr(tables, name)
    entries = [one for one in tables.array_funcify.registry if one.__module__.startswith("pytensor")]
    entries = [one for one in entries if one is not Op]
    missing = [one for one in entries if not entered(table, one) and not exempt(one, OF_PYTENSOR[name])]
    assert not missing, f"enter them in {name}, or say in OF_PYTENSOR that they need no entry"


def test_tables_are_listed_where_they_are_said_to_be():
    """The docstring of the module lists them all, and there is no other table that an Op may enter."""
    listed = [line.split("`")[1] for line in tables.__doc__.splitlines() if line.startswith("    `")]
    defined = [name for name, value in vars(tables).items() if hasattr(value, "registry")]
    assert sorted(listed) == sorted([*defined, "takes_out"])
    packages = [("synk.compile", synk.compile.__path__), ("synk.ops", synk.ops.__path__)]
    for package, path in packages:
        for module in pkgutil.walk_packages(path, f"{package}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                home = getattr(value, "__module__", "")
                if hasattr(value, "registry") and home.startswith("synk") and home != tables.__name__:
                    assert (
                        f"`{home}.{name}`" in tables.__doc__
                        or f"`{home.rpartition('.')[0]}.{name}`" in tables.__doc__
                    )
