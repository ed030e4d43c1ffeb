"""What regions compute, against the same nodes in Python: numbers, shapes, dtypes, and that they do run."""

import itertools
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from support.regions.texts import ROWS, TEXTS, i, often, t, values, x, y
from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.compat import AdvancedIncSubtensor1, AdvancedSubtensor1
from synk.compile.programs.elementwise.dialect import native_dialect
from synk.compile.regions.elements import declare
from synk.compile.regions.lines import Text
from synk.compile.regions.region import Region

NATIVE, PYTHON = array_mode(), array_mode(ArrayLinker(native=False))

# Node by node, as graphs are written: rewriting them once more takes as long as all the rest.
AS_WRITTEN = Mode(ArrayLinker(native=False), RewriteDatabaseQuery(include=["minimum_compile"]))


AT_POSITIONS = AdvancedSubtensor, AdvancedIncSubtensor, AdvancedSubtensor1, AdvancedIncSubtensor1


def compiled(outputs, mode):
    outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    inputs = list(values())
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


@cache
def functions(name):
    """Return the functions of some texts as regions and in Python, compiled once for all tests."""
    return [compiled(TEXTS[name], mode) for mode in (NATIVE, AS_WRITTEN)]


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        tolerance = 1e-5 if one.dtype == "float32" else 1e-12
        np.testing.assert_allclose(one, other, tolerance, tolerance)


@pytest.mark.parametrize("name", often(TEXTS))
def test_regions_have_the_numbers_of_python(gave_up, name):
    native, python = functions(name)
    assert any(isinstance(node.op, Region) for node in native.maker.fgraph.apply_nodes)
    for rows in (ROWS, 300, 4):
        arguments = list(values(rows).values())
        check(native(*arguments), python(*arguments))
        assert not gave_up


@pytest.mark.parametrize("name", often(name for name in TEXTS if "positions" in name))
def test_all_that_is_at_positions_is_found_by_regions(name):
    ops = [node.op for node in functions(name)[0].maker.fgraph.apply_nodes]
    assert not [op for op in ops if isinstance(op, AT_POSITIONS)]


@pytest.mark.parametrize("index", ["x[:, i]", "t[:, :, i]", "t[:, i, i]"])
@pytest.mark.parametrize("wrong", [3, -4])
def test_a_position_out_of_range_along_a_later_axis_ends_as_in_python(gave_up, index, wrong):
    index = eval(index)
    for mode in (NATIVE, PYTHON):
        function = pytensor.function([x, t, i], index * 2, mode=mode, on_unused_input="ignore")
        for rows in (4, 0):
            arguments = np.ones((rows, 3)), np.ones((rows, 3, 3)), np.zeros(400, "int64")
            assert (function(*arguments) == 2).all()
            for at in (0, 399):
                arguments[2][at], right = wrong, arguments[2][at]
                with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
                    function(*arguments)
                arguments[2][at] = right
    assert gave_up


class Apart(np.ndarray):
    """An array of another class."""


LAYOUTS = {
    "Fortran": lambda a: a.copy(order="F"),
    "reversed": lambda a: a[::-1].copy()[::-1] if a.ndim else a,
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "subclass": lambda a: a.view(Apart),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    [
        "arithmetic",
        "sums along rows",
        "reshapes",
        "products with vectors",
        "slices",
        "blocks of factors",
        "blocks of products",
        "blocks of solutions",
        "sums along each axis",
        "convolutions",
        "matrices along a diagonal",
        "positions along later axes",
        "changes at positions along later axes",
        "numbers at positions",
    ],
)
def test_arrays_may_lie_in_any_way(monkeypatch, name, layout):
    native, python = functions(name)
    monkeypatch.setattr(native, "trust_input", True)
    arguments = list(values().values())
    check(native(*[LAYOUTS[layout](np.asarray(value)) for value in arguments]), python(*arguments))


NEED_ROWS = (
    "extremes",
    "slices",
    "changed parts",
    "reshapes",
    "a view that is returned",
    "two traces of one start",
    "blocks of solutions",
    "sums along each axis",
    "convolutions",
)


@pytest.mark.parametrize(
    "name", often(name for name in TEXTS if name not in NEED_ROWS and "loop" not in name)
)
def test_arrays_without_rows(name):
    native, python = functions(name)
    arguments = list(values(0).values())
    check(native(*arguments), python(*arguments))


def test_results_are_new_arrays_and_arguments_stay_as_they_are():
    outputs = [x[i], pt.inc_subtensor(x[i], x), x.reshape((-1,)) + 0.0, pt.join(0, x, x), x.T * 1.0, x + 0]
    native = compiled(outputs, NATIVE)
    given = values()
    before = {variable: np.array(value) for variable, value in given.items()}
    first = native(*given.values())
    second = native(*given.values())
    for one in first:
        assert one.flags.writeable
        assert not any(np.shares_memory(one, other) for other in (*second, *given.values()))
    for variable, value in given.items():
        np.testing.assert_array_equal(value, before[variable])


@cache
def products_of_long_vectors():
    a, v = pt.dmatrix("a"), pt.dvector("v")
    return pytensor.function([a, v], [a @ v, (a @ v[::-1])[::-1], v @ a.T], mode=NATIVE)


@pytest.mark.parametrize("steps", [(1, 1), (-1, 1), (1, -1), (-1, -1), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_products_of_long_vectors_read_matrices_as_they_lie(steps, order):
    rng = np.random.default_rng(1)
    whole = np.asarray(rng.normal(size=(140, 160)), order=order)
    matrix = whole[:: steps[0], :: steps[1]]
    for step in (1, -1, 3):
        vector = rng.normal(size=(3 * matrix.shape[1],))[::step][: matrix.shape[1]]
        products = products_of_long_vectors()(matrix, vector)
        check(products, [matrix @ vector, (matrix @ vector[::-1])[::-1], matrix @ vector])


def unless_wrong(function, arguments):
    try:
        return function(*arguments)
    except (ValueError, IndexError, OverflowError):
        return []


EXTREMES = (0, 1, -2, 2**62, -(2**62), 2**63 - 1, -(2**63))


@pytest.mark.parametrize("name", ["slices", "ranges", slow("large positions")])
def test_numbers_may_be_extreme(name):
    start, stop, step = pt.lscalars("start", "stop", "step")
    large = pt.scalar("large", dtype="uint64")
    outputs = {
        "slices": [y[start:stop:step] * 2],
        "ranges": [pt.arange(start, stop, step) * 2],
        "large positions": [y[large] * 2],
    }[name]
    inputs = [y, start, stop, step, large]
    native, python = (
        pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore") for mode in (NATIVE, PYTHON)
    )
    for a, b, c in itertools.product(EXTREMES, EXTREMES, EXTREMES[1:]):
        if name == "ranges" and abs(c) < 2**62:
            continue  # many numbers
        arguments = [np.arange(5.0), a, b, c, np.uint64(a % 2**64)]
        with np.errstate(over="ignore"):
            check(unless_wrong(native, arguments), unless_wrong(python, arguments))


def test_an_integer_has_no_negative_zero():
    whole = [y.astype(dtype) for dtype in ("int32", "int64")]
    outputs = [1 / (whole[0] + x), 1 / whole[0], 1 / whole[1], y // whole[0]]
    for mode in (NATIVE, PYTHON):
        function = pytensor.function([x, y], outputs, mode=mode)
        with np.errstate(all="ignore"):
            results = function(np.zeros((3, 40)), np.full(40, -0.5))
        assert [float(result.flat[0]) for result in results] == [np.inf, np.inf, np.inf, -np.inf]


def test_a_text_is_the_same_in_each_process():
    # Libraries are kept by it, and in another process sets come in another order.
    calls = [
        ("fabs", "float64", 1),
        ("log1p", "float64", 1),
        ("exp", "float32", 1),
        ("scipy_betainc", "float64", 1),
    ]
    texts = set()
    for functions in itertools.permutations(calls):
        text = Text()
        declare(text, native_dialect(), SimpleNamespace(functions=functions))
        texts.add(tuple(text.declarations))
    assert len(texts) == 1
