"""Programs of one region as functions in C."""

import ctypes
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.type import random_generator_type

from synk.compile import ArrayLinker, array_mode
from synk.compile.regions import callback
from synk.compile.regions.callback import callback_of, only_region

POINTER = ctypes.POINTER(ctypes.c_double)
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, POINTER, POINTER, POINTER, ctypes.c_void_p)
SQUARES = np.array([1.0, 2, 3])


def compiled(inputs, output, native=True, **keywords):
    mode = array_mode(ArrayLinker(native=native))
    return pytensor.function(inputs, [output], mode=mode, trust_input=True, **keywords).vm.jit_fn


def density(x):
    value = -(SQUARES * x**2).sum() + pt.log(x[0])
    return pt.concatenate([value[None], pt.grad(value, x)])


def expected(x):
    gradient = -2 * SQUARES * x
    gradient[0] += 1 / x[0]
    return -(SQUARES * x**2).sum() + np.log(x[0]), gradient


class Called:
    """A density as C calls it."""

    def __init__(self, build=density):
        x = pt.dvector("x")
        self.buffer, self.n_otherwise = np.ones(3), 0
        call = only_region(compiled([x], build(x)), [self.buffer])
        self.callback = callback_of(call, self.buffer, self.otherwise)

    def otherwise(self):
        self.n_otherwise += 1
        return np.array([7.0, 1, 2, 3])

    def __call__(self, *point):
        given, gradient, value = np.array(point), np.full(len(point), 9.0), ctypes.c_double()
        arrays = [one.ctypes.data_as(POINTER) for one in (given, gradient)]
        status = FUNCTION(self.callback.address)(len(given), *arrays, value, self.callback.data)
        return status, value.value, gradient


def test_c_gets_what_python_computes():
    called = Called()
    for point in ((1.0, 2, 3), (0.5, -1, 1e-3)):
        status, value, gradient = called(*point)
        assert status == 0
        np.testing.assert_allclose(value, expected(np.array(point))[0], rtol=1e-15)
        np.testing.assert_allclose(gradient, expected(np.array(point))[1], rtol=1e-15)
    assert called.n_otherwise == 0


def test_any_thread_may_call_it():
    called, results = Called(), []
    threads = [threading.Thread(target=lambda: results.append(called(1.0, 2, 3)[1])) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert results == [called(1.0, 2, 3)[1]] * 3


def test_the_status_tells_what_is_not_finite():
    assert Called()(0.0, 2, 3)[0] == 3
    assert Called(lambda x: pt.concatenate([pt.log(x[:1] - 1), x]))(1.0, 2, 3)[0] == 4
    assert Called()(1.0, 2)[0] == -1


def test_python_answers_where_the_region_gives_up():
    called = Called(lambda x: pt.concatenate([pt.as_tensor(SQUARES)[x[:1].astype("int64")], x]))
    assert called(1.0, 2, 3)[1] == SQUARES[1]
    status, value, gradient = called(5.0, 2, 3)
    assert (status, value, gradient.tolist(), called.n_otherwise) == (0, 7.0, [1, 2, 3], 1)


def test_an_error_of_the_answer_in_python_is_a_status(monkeypatch):
    called = Called(lambda x: pt.concatenate([pt.as_tensor(SQUARES)[x[:1].astype("int64")], x]))
    monkeypatch.setattr(called, "n_otherwise", None)  # adding to it raises
    assert called(5.0, 2, 3)[0] == 1


@pytest.mark.parametrize(
    ("native", "build"), [(False, density), (True, lambda x: pt.cumprod(x) + pt.sort(x))]
)
def test_what_is_more_than_a_region_in_c_is_none(native, build):
    x = pt.dvector("x")
    assert only_region(compiled([x], build(x), native), [np.ones(3)]) is None


def test_draws_in_a_loop_are_no_callback():
    x, generator = pt.dvector("x"), random_generator_type("generator")

    def step(state, rng):
        after, noise = pt.random.normal(size=3, rng=rng, return_next_rng=True)
        return state + noise, after

    states, _ = pytensor.scan(step, outputs_info=[x, generator], n_steps=2, return_updates=False)
    program = compiled([x, generator], states[-1] * 2)
    assert len(program.nodes) == 1
    assert only_region(program, [np.ones(3), np.random.default_rng()]) is None


def test_shared_variables_are_no_arguments():
    x, shift = pt.dvector("x"), pytensor.shared(np.ones(3))
    assert only_region(compiled([x], density(x + shift)), [np.ones(3)]) is None


@pytest.mark.parametrize(
    "build", [lambda x: density(x).astype("float32"), lambda x: x * 2, lambda x: pt.outer(x, x) * 2]
)
def test_a_result_that_c_cannot_read_is_no_callback(build):
    assert Called(build).callback is None


def test_c_that_does_not_compile_is_no_callback(monkeypatch):
    monkeypatch.setattr(callback, "_address", lambda: 0)
    assert Called().callback is None
