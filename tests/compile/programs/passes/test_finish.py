"""Parts of a flat vector are told to be final when they are: nothing reads or writes them afterwards."""

from math import prod

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from support.slow import slow
from synk import ops
from synk.compile import ArrayLinker, array_mode
from synk.compile.compat import optional_class
from synk.extensions.gradients import flatten

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")


class Told:
    """Notes what is final, and turns its sign, as somebody who works on it from then on."""

    def __init__(self, xp):
        self.xp = xp
        self.starts = []
        self.variables = set()
        self.expected = set()
        self._stop = None

    def expect(self, variable, shape, dtype):
        self.expected.add((variable.name, shape, dtype))

    def finished(self, variable, array, start):
        stop = len(array) if self._stop is None else self._stop
        assert start < stop or start == stop == 0
        self.variables.add(variable.name)
        self.starts.append(start)
        if start < stop:
            part = array[start:stop]
            array[start:stop] = -part
        self._stop = start

    def begin(self):
        self.starts, self._stop = [], None


@pytest.fixture(params=["numpy", slow("device")])
def xp(request, device):
    return np if request.param == "numpy" else device


@pytest.fixture
def told(xp):
    return Told(xp)


@pytest.fixture
def check(xp, told):
    """Compare a function that tells what is final with one that does not; return the starts it told."""

    def compared(inputs, outputs, flat, expression, *values):
        def build(**options):
            mode = array_mode(ArrayLinker(xp, native=False, **options))
            return pytensor.function(inputs, outputs, updates=[(flat, expression)], mode=mode)

        plain, telling = build(), build(announcer=told)
        before = _on_host(flat)
        expected = plain(*values)
        vector = _on_host(flat)
        for _ in range(2):  # in the array of the first time
            flat.container.storage[0][...] = xp.asarray(before)
            told.begin()
            found = telling(*values)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
            turned = slice(told.starts[-1] if told.starts else len(vector), None)
            vector_now = _on_host(flat)
            vector_now[turned] *= -1
            np.testing.assert_array_equal(vector_now, vector)
        return told.starts

    return compared


def _on_host(flat):
    value = flat.container.storage[0]
    return value.copy() if isinstance(value, np.ndarray) else value.get()


def shared(shape, name, seed=0):
    value = np.random.default_rng(seed).normal(size=shape)
    return pytensor.shared(value, name=name)


def flat_of(pieces, x):
    """Return a vector of pieces and a weight, and what it is to hold."""
    shapes = [piece.type.shape for piece in pieces]
    expression = flatten(pieces, pt.cast(x.shape[0], "float64"))
    return shared(sum(map(prod, shapes)) + 1, "flat"), expression


def gradients(loss, params, x):
    shapes = [param.get_value().shape for param in params]
    known = [pt.specify_shape(g, shape) for g, shape in zip(pt.grad(loss, params), shapes, strict=True)]
    return flat_of(known, x)


@pytest.fixture
def network():
    params = [shared((4, 5), "w1", 1), shared(5, "b1", 2), shared((5, 3), "w2", 3), shared(3, "b2", 4)]
    w1, b1, w2, b2 = params
    x = pt.matrix("x")
    hidden = pt.tanh(x @ w1 + b1)
    return x, hidden, (pt.tanh(hidden @ w2 + b2) ** 2).sum(), params


X = np.random.default_rng(5).normal(size=(6, 4))


def test_the_last_layers_are_final_first(network, check, told):
    x, _, loss, params = network
    starts = check([x], [loss], *gradients(loss, params, x), X)
    assert starts == sorted(starts, reverse=True)
    assert starts[-1] == 0
    assert 25 in starts  # the second layer, before the first is computed
    assert told.variables == {"flat"}
    assert told.expected == {("flat", (44,), "float64")}


def test_what_is_read_late_is_final_late(network, check):
    x, hidden, loss, params = network
    flat, expression = gradients(loss, params, x)
    first, second = pt.grad(loss, [params[0], params[2]])
    late = pt.tanh(second * first.sum()).sum()
    check([x], [loss, late, hidden], flat, expression, X)


def test_a_vector_that_is_read_whole_is_final_at_the_end(network, check):
    x, _, loss, params = network
    flat, expression = gradients(loss, params, x)
    assert check([x], [(expression**2).sum(), loss], flat, expression, X) == [0]


def test_a_vector_that_is_returned_too_is_not_told_of(network, check):
    x, _, loss, params = network
    flat, expression = gradients(loss, params, x)
    check([x], [expression, loss], flat, expression, X)


def test_an_old_value_that_is_read_late_stays_until_then(network, check):
    x, hidden, loss, params = network
    flat, expression = gradients(loss, params, x)
    check([x], [(hidden * flat[-1]).sum()], flat, expression, X)


@pytest.mark.slow
def test_an_old_value_is_read_and_added_to(network, check):
    x, _, loss, params = network
    flat, expression = gradients(loss, params, x)
    check([x], [pt.exp(flat).sum() * loss + expression[0]], flat, expression + flat, X)
    check([x], [(flat * loss).sum()], flat, expression, X)


def test_pieces_that_no_node_writes_in_place_are_copied_early(check):
    x = pt.tensor("x", shape=(None, 2, 6, 6), dtype="float64")
    w1, w2 = shared((3, 2, 3, 3), "w1", 1), shared((4, 3, 3, 3), "w2", 2)
    gamma, beta = shared(3, "gamma", 3), shared(3, "beta", 4)
    y = ops.conv2d(x, w1, padding=1)
    y, _ = ops.batch_norm(y, gamma, beta, np.zeros(3), np.ones(3), train=True)
    loss = (ops.conv2d(ops.relu(y), w2, padding=1) ** 2).mean()
    values = np.random.default_rng(0).normal(size=(2, 2, 6, 6))
    starts = check([x], [loss], *gradients(loss, [w1, gamma, beta, w2], x), values)
    assert 54 + 6 in starts  # w2, before batch norm
    assert 54 in starts  # gamma and beta, which one node makes, before w1


@pytest.mark.slow
def test_pieces_of_a_branch_are_not_told_of(network, check):
    x, _, loss, params = network
    shapes = [param.get_value().shape for param in params]
    lazy = [ifelse(x.sum() > 0, grad, grad * 0) for grad in pt.grad(loss, params)]
    known = [pt.specify_shape(grad, shape) for grad, shape in zip(lazy, shapes, strict=True)]
    flat, expression = flat_of(known, x)
    check([x], [loss], flat, expression, X)
    check([x], [loss], flat, expression, -X)
