import itertools
import os
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.link.c.op import COp

from support.cases.unary_op import UnaryOp
from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.compat import optional_class

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")


class Half(UnaryOp):
    """An Op that PyTensor alone can run."""

    def perform(self, node, inputs, outputs):
        assert outputs[0][0] is None, "storage must be fresh"
        assert type(inputs[0]) is np.ndarray
        outputs[0][0] = inputs[0] / 2


half = Half()


def refuse(*args, **keywords):
    raise AssertionError(f"called with {args}")


def mlp(dtype, rng):
    """Return inputs, parameters, loss and input values of a small network with ReLU, dropout and tanh."""
    sizes = [6, 5, 4, 3]
    x, y, mask = pt.matrix("x", dtype=dtype), pt.lvector("y"), pt.matrix("mask", dtype=dtype)
    weights = [pytensor.shared(rng.normal(size=s).astype(dtype), name="w") for s in itertools.pairwise(sizes)]
    biases = [pytensor.shared(rng.normal(size=n).astype(dtype), name="b") for n in sizes[1:]]
    hidden = pt.maximum(x @ weights[0] + biases[0], 0) * mask
    hidden = pt.tanh(hidden @ weights[1] + biases[1])
    log_p = pt.special.log_softmax(hidden @ weights[2] + biases[2], axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    values = [rng.normal(size=(7, 6)), rng.integers(0, 3, 7), rng.integers(0, 2, (7, 5))]
    return [x, y, mask], weights + biases, loss, [values[0].astype(dtype), values[1], values[2].astype(dtype)]


@pytest.mark.parametrize(("dtype", "rtol"), [slow("float32", 1e-4), ("float64", 1e-10)])
def test_gradient_of_a_network(compare, dtype, rtol):
    inputs, params, loss, values = mlp(dtype, np.random.default_rng(0))
    compare(inputs, [loss, *pt.grad(loss, params)], values, rtol=rtol, atol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-4), ("float64", 1e-10)])
def test_momentum_trains_as_the_oracle_does(oracle, dtype, rtol):
    def train(run):
        inputs, params, loss, values = mlp(dtype, np.random.default_rng(0))
        updates = {}
        for param, gradient in zip(params, pt.grad(loss, params), strict=False):
            velocity = pytensor.shared(np.zeros_like(param.get_value()))
            updates[velocity] = np.asarray(0.9, dtype) * velocity - np.asarray(0.1, dtype) * gradient
            updates[param] = param + updates[velocity]
        losses = run(inputs, loss, values, updates)
        return [*losses, *[param.get_value() for param in params]]

    def by_arrays(inputs, loss, values, updates):
        step = pytensor.function(inputs, loss, updates=updates, mode=array_mode())
        return [step(*values) for _ in range(3)]

    def by_oracle(inputs, loss, values, updates):
        return [oracle(inputs, loss, values, updates=updates) for _ in range(3)]

    for result, expected in zip(train(by_arrays), train(by_oracle), strict=True):
        assert result.dtype == expected.dtype == dtype
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol)


def test_usable_as_a_plain_linker():
    x = pt.dvector("x")
    function = pytensor.function([x], [x + 1, x.sum()], mode=Mode(ArrayLinker(), "fast_run"))
    np.testing.assert_array_equal(function([1.0, 2.0])[0], [2, 3])


def test_one_linker_serves_many_functions_with_its_settings():
    mode = array_mode(ArrayLinker(host_ops="raise"))
    x = pt.dvector("x")
    assert pytensor.function([x], x.sum(), mode=mode)([1.0, 2.0]) == 3
    with pytest.raises(NotImplementedError, match="Half"):
        pytensor.function([x], half(x), mode=mode)


def test_another_array_module_computes():
    class Recorder:
        """NumPy, noting what is asked of it."""

        __name__ = "recorder"
        asked: set = set()  # noqa: RUF012

        def __getattr__(self, name):
            self.asked.add(name)
            return getattr(np, name)

    x = pt.dmatrix("x")
    function = pytensor.function([x], pt.exp(x @ x), mode=array_mode(ArrayLinker(Recorder())))
    np.testing.assert_allclose(function(np.eye(2)), np.exp(np.eye(2)))
    assert {"dot", "exp"} <= Recorder.asked


def test_error_names_the_failing_node_at_length():
    x = pt.dvector("x")
    function = pytensor.function([x], (x + x[::-1]).max(), mode=array_mode())
    with (
        pytensor.config.change_flags(exception_verbosity="high"),
        pytest.raises(ValueError, match="caused the error: Max"),
    ):
        function([])


def test_memory_of_inputs_and_outputs_is_released():
    x = pt.dvector("x")
    function = pytensor.function([x], x + 1, mode=array_mode())
    function(np.ones(3))
    storages = [container.storage[0] for container in (*function.input_storage, *function.output_storage)]
    assert storages == [None, None]


def test_host_ops_may_warn():
    x = pt.dvector("x")
    with pytest.warns(UserWarning, match="no array entry for Half"):
        pytensor.function([x], half(x), mode=array_mode(ArrayLinker(host_ops="warn")))


def test_host_ops_must_be_known():
    with pytest.raises(ValueError, match="host_ops='never' is unknown; choose one of allow"):
        ArrayLinker(host_ops="never")


def test_scan_runs_without_a_compiler(monkeypatch):
    monkeypatch.setattr(COp, "make_c_thunk", refuse)
    x = pt.dvector("x")
    total = pytensor.scan(
        lambda row, state: state * 0.5 + row,
        sequences=x,
        outputs_info=pt.zeros((), "float64"),
        return_updates=False,
    )
    gradient = pt.grad(total[-1], x)
    results = pytensor.function([x], [total[-1], gradient], mode=array_mode())(np.arange(4.0))
    np.testing.assert_allclose(results[0], 4.25)
    np.testing.assert_allclose(results[1], [0.125, 0.25, 0.5, 1])


def test_compiling_starts_no_process_once_its_kernels_are_kept(monkeypatch):
    inputs, params, loss, values = mlp("float32", np.random.default_rng(0))
    pytensor.function(inputs, pt.grad(loss, params), mode=array_mode())(*values)
    monkeypatch.setattr(os, "posix_spawn", refuse)
    pytensor.function(inputs, pt.grad(loss, params), mode=array_mode())(*values)


def test_a_mode_travels_with_its_linker():
    mode = pickle.loads(pickle.dumps(array_mode(ArrayLinker(host_ops="raise"))))
    assert mode.linker.xp is np
    assert mode.linker.host_ops == "raise"
    x = pt.vector("x")
    assert pytensor.function([x], x.sum(), mode=mode)([1.0, 2.0]) == 3
