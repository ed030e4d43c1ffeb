"""Results are written where they are to live, and nothing else is written over."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import ArrayLinker, array_mode


class Writes:
    """An observer that notes which nodes were given ``out=``, and where that is."""

    def __init__(self):
        self.outs = []

    def __call__(self, node, implementation):
        def run(*inputs, **keywords):
            out = keywords.get("out")
            for array in out if isinstance(out, tuple) else (out,):
                if array is not None:
                    self.outs.append((type(node.op).__name__, array))
            return implementation(*inputs, **keywords)

        if hasattr(implementation, "host_nodes"):
            run.host_nodes = implementation.host_nodes
        return run


@pytest.fixture
def writes():
    return Writes()


@pytest.fixture
def compiled(writes):
    def compile(inputs, outputs, updates):
        mode = array_mode(ArrayLinker(observe=writes, native=False))
        return pytensor.function(inputs, outputs, updates=updates, mode=mode, on_unused_input="ignore")

    return compile


def storage(variable):
    return variable.get_value(borrow=True)


def shared(value):
    return pytensor.shared(np.array(value, dtype="float32"))


def flat_of(pieces, shapes):
    """Join pieces of known shapes in one vector."""
    known = [pt.specify_shape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return pt.concatenate([piece.reshape((-1,)) for piece in known])


def network():
    """Return inputs, gradients and shapes of a small perceptron, and values for the inputs."""
    generator = np.random.default_rng(3)
    shapes = [(7, 5), (5,), (5, 4), (4,), (4, 3), (3,)]
    parameters = [shared(generator.normal(size=shape)) for shape in shapes]
    x, y = pt.fmatrix("x"), pt.ivector("y")
    w1, b1, w2, b2, w3, b3 = parameters
    hidden = pt.maximum(x @ w1 + b1, 0)
    hidden = pt.maximum(hidden @ w2 + b2, 0)
    log_p = pt.special.log_softmax(hidden @ w3 + b3, axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    values = [generator.normal(size=(6, 7)).astype("float32"), np.array([0, 1, 2, 0, 1, 2], dtype="int32")]
    return [x, y], pytensor.grad(loss, parameters), shapes, values


@pytest.mark.slow
def test_gradients_are_born_in_the_flat_vector_with_the_same_bits(compiled, writes):
    inputs, gradients, shapes, values = network()
    separate = pytensor.function(inputs, gradients, mode=array_mode(ArrayLinker(native=False)))(*values)
    flat = shared(np.zeros(sum(map(np.prod, shapes))))
    before = storage(flat)
    compiled(inputs, [], {flat: flat_of(gradients, shapes)})(*values)
    assert storage(flat) is before
    np.testing.assert_array_equal(before, np.concatenate([gradient.ravel() for gradient in separate]))
    producers = [name for name, out in writes.outs if np.shares_memory(out, before)]
    assert sorted(producers) == ["Dot22"] * 3 + ["Join"] + ["Sum"] * 3


def test_join_that_is_returned_is_a_new_array_each_time(compiled, writes):
    inputs, gradients, shapes, values = network()
    function = compiled(inputs, flat_of(gradients, shapes), {})
    first, second = function(*values), function(*values)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, second)
    assert any(name == "Dot22" for name, _ in writes.outs)


def test_old_value_that_is_read_later_is_not_overwritten(compiled):
    x = pt.fmatrix("x")
    flat = shared(np.arange(9))
    product = pt.specify_shape(x @ x, (3, 3))
    function = compiled(
        [x], [(product * flat.reshape((3, 3))).sum(axis=0)], {flat: flat_of([product], [(3, 3)])}
    )
    value = np.eye(3, dtype="float32") * 2
    before = storage(flat)
    np.testing.assert_array_equal(function(value)[0], 4 * np.diag(np.arange(9).reshape(3, 3)))
    assert storage(flat) is before
    np.testing.assert_array_equal(before, (value @ value).ravel())


def test_piece_that_is_overwritten_later_is_copied(compiled):
    x = pt.fmatrix("x")
    flat = shared(np.zeros(4))
    total = shared(np.zeros((2, 2)))
    product = pt.specify_shape(x @ x, (2, 2))
    changed = pt.set_subtensor(product[0], 100.0)
    function = compiled([x], [], {flat: flat_of([product], [(2, 2)]), total: changed})
    value = np.array([[1, 2], [3, 4]], dtype="float32")
    function(value)
    np.testing.assert_array_equal(storage(flat), (value @ value).ravel())
    np.testing.assert_array_equal(storage(total), [[100, 100], [15, 22]])


def test_one_piece_twice_in_a_join(compiled):
    x = pt.fmatrix("x")
    flat = shared(np.zeros(8))
    product = x @ x
    function = compiled([x], [], {flat: flat_of([product, product], [(2, 2)] * 2)})
    value = np.array([[1, 2], [3, 4]], dtype="float32")
    function(value)
    np.testing.assert_array_equal(storage(flat), np.tile((value @ value).ravel(), 2))


def test_a_piece_that_is_returned_too_has_memory_of_its_own(compiled):
    w, flat = shared(np.ones((3, 2))), shared(np.zeros(12))
    x = pt.fmatrix("x")
    pieces = [pt.dot(x, w), pt.dot(x + 1, w)]
    function = compiled([x], [pieces[0]], {flat: flat_of(pieces, [(3, 2)] * 2)})
    result = function(np.eye(3, dtype="float32"))[0]
    result[...] = 7
    assert storage(flat).tolist() == [1] * 6 + [4] * 6


def test_updates_keep_the_address_of_the_variable(compiled):
    x = pt.fmatrix("x")
    variables = [shared(np.ones((2, 2))) for _ in range(4)]
    decayed, replaced, product, transposed = variables
    updates = {
        decayed: decayed * 0.5 + x,
        replaced: x + 1,
        product: x @ x,
        transposed: transposed.T,
    }
    before = [storage(variable) for variable in variables]
    transposed.get_value(borrow=True)[...] = [[1, 2], [3, 4]]
    function = compiled([x], [], updates)
    value = np.array([[1, 2], [3, 4]], dtype="float32")
    function(value)
    for variable, array in zip(variables, before, strict=True):
        assert storage(variable) is array
    np.testing.assert_array_equal(before[0], 0.5 + value)
    np.testing.assert_array_equal(before[1], value + 1)
    np.testing.assert_array_equal(before[2], value @ value)
    np.testing.assert_array_equal(before[3], [[1, 3], [2, 4]])


def test_variables_that_take_each_others_values(compiled):
    a, b, c = shared([1, 2]), shared([3, 4]), shared([5, 6])
    before = [storage(variable) for variable in (a, b, c)]
    function = compiled([], [a], {a: b, b: c, c: a + c})
    returned = function()[0]
    np.testing.assert_array_equal(returned, [1, 2])
    np.testing.assert_array_equal([storage(v) for v in (a, b, c)], [[3, 4], [5, 6], [6, 8]])
    assert [storage(v) is array for v, array in zip((a, b, c), before, strict=True)] == [True] * 3
    function()
    np.testing.assert_array_equal(returned, [1, 2])
    np.testing.assert_array_equal([storage(v) for v in (a, b, c)], [[5, 6], [6, 8], [9, 12]])


def test_view_of_another_variable(compiled):
    a, b = shared([1, 2, 3]), shared([4, 5, 6])
    compiled([], [], {a: b[::-1], b: b + 1})()
    np.testing.assert_array_equal([storage(a), storage(b)], [[6, 5, 4], [5, 6, 7]])


def test_value_of_another_shape_replaces_the_array(compiled):
    a = shared([1, 2])
    function = compiled([], [], {a: pt.concatenate([a, a])})
    function()
    assert storage(a).tolist() == [1, 2, 1, 2]


def test_array_that_may_not_be_written_is_replaced(compiled):
    a = shared([1, 2])
    array = storage(a)
    array.flags.writeable = False
    compiled([], [], {a: pt.concatenate([pt.constant(np.float32([7])), pt.constant(np.float32([8]))])})()
    assert storage(a).tolist() == [7, 8]
    assert array.tolist() == [1, 2]


def test_array_that_is_not_contiguous_is_filled(compiled):
    a = pytensor.shared(np.zeros((2, 4), dtype="float32")[:, ::2], borrow=True)
    array, x = storage(a), pt.fmatrix("x")
    assert not array.flags.c_contiguous
    function = compiled([x], [], {a: pt.specify_shape(x @ x, (2, 2))})
    function(np.array([[1, 2], [3, 4]], dtype="float32"))
    assert storage(a) is array
    np.testing.assert_array_equal(array, [[7, 10], [15, 22]])


def test_scalars_keep_their_array(compiled):
    count = pytensor.shared(np.array(3), name="count")
    before = storage(count)
    compiled([], [], {count: count + 1})()
    assert storage(count) is before
    assert before == 4


def test_value_of_the_wrong_size_is_an_error(compiled):
    x = pt.fmatrix("x")
    flat = shared(np.zeros(4))
    function = compiled([x], [], {flat: flat_of([x @ x], [(2, 2)])})
    with pytest.raises((ValueError, AssertionError)):
        function(np.ones((3, 3), dtype="float32"))


def test_constants_are_copied_in(compiled):
    flat = shared(np.zeros(3))
    before = storage(flat)
    compiled(
        [], [], {flat: pt.concatenate([pt.constant(np.float32([1, 2])), pt.constant(np.float32([3]))])}
    )()
    assert storage(flat) is before
    assert before.tolist() == [1, 2, 3]
