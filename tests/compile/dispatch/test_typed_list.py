import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.typed_list import TypedListType, make_list
from pytensor.typed_list.basic import Append, Extend, Insert, Remove, Reverse

from synk.compile import ArrayLinker, array_funcify, array_mode

BARE = RewriteDatabaseQuery(include=["minimum_compile"])
ROWS = TypedListType(pt.dvector)


def rows(*values):
    return [np.array(value, "float64") for value in values]


@pytest.fixture
def compare_lists(oracle):
    """Check a graph whose outputs are lists or arrays against the oracle, rewritten and as it stands."""

    def check(inputs, outputs, values):
        expected = oracle(inputs, outputs, values)
        before = [as_lists(value) for value in values]
        for mode in (array_mode(), Mode(ArrayLinker(), BARE)):
            function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
            assert function.vm.jit_fn.host_nodes == ()
            for _ in range(2):  # a second call finds what the first one left behind
                results = function(*values)
                assert [as_lists(result) for result in results] == [as_lists(value) for value in expected]
                assert [as_lists(value) for value in values] == before
                assert_apart(results, values)

    return check


def as_lists(value):
    """Return a value with the dtype of every array in it."""
    if isinstance(value, list):
        return [as_lists(element) for element in value]
    assert type(value) is np.ndarray
    return (value.dtype, value.tolist())


def arrays(value):
    return [array for element in value for array in arrays(element)] if isinstance(value, list) else [value]


def assert_apart(results, values):
    for i, result in enumerate(results):
        others = [array for other in [*values, *results[:i]] for array in arrays(other)]
        assert not any(np.shares_memory(a, b) for a in arrays(result) for b in others)


def test_lists_are_made_and_read(compare_lists):
    x, s, i = pt.dmatrix(), pt.dscalar(), pt.lscalar()
    of_rows, of_scalars = make_list([x[0], x[1], x[0]]), make_list([s, s * 2])
    nested = make_list([of_rows, of_rows])
    outputs = [
        of_rows,
        of_scalars,
        nested,
        nested[1][i],
        of_rows[-1],
        of_rows[:2],
        nested.length(),
        of_scalars[i],
    ]
    compare_lists([x, s, i], outputs, [np.arange(4.0).reshape(2, 2), np.array(3.0), np.array(1)])


def test_lists_are_changed(compare_lists):
    x, row, i = ROWS(), pt.dvector(), pt.lscalar()
    outputs = [x.append(row), x.extend(x), x.insert(i, row), x.insert(-1, row), x.reverse(), x.remove(row), x]
    compare_lists([x, row, i], outputs, [rows([1, 2], [3], [1, 2]), np.array([1.0, 2.0]), np.array(1)])


@pytest.mark.parametrize(
    ("op", "types", "arguments", "expected"),
    [
        (Append, [pt.dvector], rows([9]), [1, 2, 9]),
        (Extend, [ROWS], [rows([9], [10])], [1, 2, 9, 10]),
        (Insert, [pt.lscalar, pt.dvector], [np.array(1), *rows([9])], [1, 9, 2]),
        (Reverse, [], [], [2, 1]),
        (Remove, [pt.dvector], rows([1]), [2]),
    ],
)
def test_lists_are_changed_in_place(op, types, arguments, expected):
    node = op(inplace=True).make_node(ROWS(), *[kind() for kind in types])
    values = rows([1], [2])
    assert array_funcify(node.op, node, np)(values, *arguments) is values
    assert [element.tolist() for element in values] == [[value] for value in expected]
    assert_apart([values], arguments)


def test_elements_are_found(compare_lists):
    x, row, nested = ROWS(), pt.dvector(), TypedListType(ROWS)()
    outputs = [x.ind(row), x.count(row), nested.ind(x), nested.count(x), nested.remove(x)]
    values = rows([1], [1, np.inf], [2, 2], [1, np.inf])
    others = [rows([1]), values[:3], [value.copy() for value in values]]
    compare_lists([x, row, nested], outputs, [values, values[1].copy(), others])


def test_nan_equals_nan_and_nothing_else():
    x, row = ROWS(), pt.dvector()
    function = pytensor.function([x, row], x.count(row), mode=array_mode())
    assert function(rows([np.nan, 1], [np.nan, 2], [1, 1]), np.array([np.nan, 1])) == 1


def test_a_value_that_is_not_there():
    x, row = ROWS(), pt.dvector()
    function = pytensor.function([x, row], x.ind(row), mode=array_mode())
    with pytest.raises(ValueError, match="not in the list"):
        function(rows([1], [2]), np.array([3.0]))
    function = pytensor.function([x, row], x.remove(row), mode=array_mode())
    assert as_lists(function(rows([1], [2]), np.array([3.0]))) == as_lists(rows([1], [2]))


def test_lists_of_sparse_matrices():
    x, y = ps.csr_matrix(dtype="float64"), ps.csr_matrix(dtype="float64")
    matrices = make_list([x, y, x])
    function = pytensor.function([x, y], [matrices, matrices.count(x)], mode=array_mode())
    assert function.vm.jit_fn.host_nodes == ()
    value = sp.eye(2, format="csr")
    result, number = function(value, 2 * value)
    assert [matrix.toarray()[0, 0] for matrix in result] == [1, 2, 1]
    assert number == 2
    assert not np.shares_memory(result[0].data, value.data)
