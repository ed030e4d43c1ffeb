import itertools
import pickle
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op

from support.slow import slow
from synk.compile import array_funcify, array_mode, emit
from synk.compile.observe.debug import Debug, DebugError, debug_mode

A, B = np.arange(4.0), np.ones(4)


class Faulty(Op):
    """The sum and the difference of two vectors, by an entry with a fault in it."""

    __props__ = ("fault", "maps")

    def __init__(self, fault, maps=()):
        self.fault, self.maps = fault, maps
        for name, mapping in maps:
            setattr(self, name, {output: [source] for output, source in mapping})

    def make_node(self, x, y):
        return Apply(self, [x, y], [pt.dvector(), pt.dvector()])

    def perform(self, node, inputs, outputs):
        x, y = inputs
        outputs[0][0], outputs[1][0] = x + y, x - y


def writes(x, y):
    result = x + y, x - y
    x += 1
    return result


def draws(x, y):
    total = x + y
    total[2] += 1e-3
    return total, x - y


ENTRIES = {
    "none": lambda x, y: (x + y, x - y),
    "view": lambda x, y: (x + y, y[::-1]),
    "input": lambda x, y: (x, x - y),
    "shared": lambda x, y: ((buffer := np.zeros(8))[:4], buffer[2:6]),
    "writes": writes,
    "dtype": lambda x, y: (x + y, (x - y).astype("float32")),
    "axes": lambda x, y: (x + y, (x - y)[None]),
    "list": lambda x, y: (x + y, list(x - y)),
    "count": lambda x, y: (x + y, x - y, x),
    "value": draws,
    "length": lambda x, y: (x + y, (x - y)[:-1]),
    "nan": lambda x, y: (x + y, np.where(x == 2, np.nan, x - y)),
    "inf": lambda x, y: (x + y, np.where(x == 2, np.inf, x - y)),
}


@array_funcify.register(Faulty)
def faulty(op, node, xp):
    return ENTRIES[op.fault]


def run(fault, maps=(), values=(A, B), **keywords):
    """Run the Op as it stands: nothing but the checks sees what it does."""
    x, y = pt.dvectors("xy")
    results = Faulty(fault, maps)(x, y)
    program = emit(FunctionGraph([x, y], results, clone=False), np, observe=Debug(**keywords))
    return program(*[value.copy() for value in values])


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("view", "output 1 shares memory with input 1; no view_map or destroy_map says so"),
        ("input", "output 0 shares memory with input 0"),
        ("shared", "outputs 0 and 1 share memory"),
        ("writes", "input 0 was written to; destroy_map does not say so"),
        ("dtype", "output 1 has dtype float32, the node declares float64"),
        ("axes", r"output 1 has shape \(1, 4\), the node declares \(None,\)"),
        ("list", "output 1 is a list, not an array"),
        ("count", "returned 3 values, the node declares 2"),
        ("value", r"1 of 4 values of output 0 are wrong: the one at \(2,\) is 3.001, that of perform 3.0"),
        ("length", r"output 1 is float64 \(3,\), that of perform float64 \(4,\)"),
        ("nan", "1 of 4 values of output 1 are nan, none of any input is"),
        ("inf", "1 of 4 values of output 1 are wrong"),
    ],
)
def test_faults_are_found_and_named(fault, complaint):
    with pytest.raises(DebugError, match=complaint) as caught:
        run(fault)
    message = str(caught.value)
    assert message.startswith(f"Faulty{{fault='{fault}', maps=()}}(x, y): ")
    assert "results = Faulty(fault, maps)(x, y)" in message
    assert "x: float64 (4,)" in "\n".join(caught.value.__notes__)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), DebugError)


def test_correct_nodes_pass():
    np.testing.assert_array_equal(run("none"), [A + B, A - B])


def test_declared_views_and_writing_pass():
    with pytest.raises(DebugError, match="wrong"):  # the value alone
        run("view", (("view_map", ((1, 1),)),))
    run("writes", (("destroy_map", ((0, 0),)),))
    with pytest.raises(DebugError, match="output 1 shares memory with input 1"):
        run("view", (("view_map", ((1, 0),)),))


def test_views_of_overlapping_inputs_pass():
    x, y = pt.dvectors("xy")
    results = Faulty("view", (("view_map", ((1, 1),)),))(x, y)
    program = emit(FunctionGraph([x, y], results, clone=False), np, observe=Debug())
    base = np.arange(5.0)
    with pytest.raises(DebugError, match="wrong"):  # not: shares memory with input 0
        program(base[:4], base[1:])


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_answers_to_nan_and_infinity(kind):
    complaint = f"1 of 4 values of output 1 are {kind}"
    # Their own implementation has none, so that the values are wrong is said next.
    with pytest.raises(DebugError, match=complaint):
        run(kind, **{kind: "raise"})
    with pytest.warns(RuntimeWarning, match=complaint), pytest.raises(DebugError, match="wrong"):
        run(kind, **{kind: "warn"})
    with pytest.raises(DebugError, match="wrong"):
        run(kind, **{kind: "ignore"})


def test_nan_that_inputs_have_is_no_news():
    x = pt.dvector("x")
    function = pytensor.function([x], pt.log(x) + 1, mode=debug_mode())
    np.testing.assert_array_equal(function([np.nan, -1.0]), [np.nan, np.nan])
    with pytest.raises(DebugError, match="1 of 2 values of output 0 are nan"):
        function([1.0, -1.0])


def test_of_a_region_the_node_is_named_that_makes_nan_and_its_line():
    x = pt.dmatrix("x")
    y = pt.log(x)
    function = pytensor.function([x], y.sum(), mode=debug_mode())
    assert len(function.maker.fgraph.apply_nodes) == 1
    with pytest.raises(DebugError, match=r"^Log\(x\): 4 of 4 values of output 0 are nan") as caught:
        function(-np.ones((2, 2)))
    assert "y = pt.log(x)" in str(caught.value)


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_answers_must_be_known(name):
    with pytest.raises(ValueError, match=f"{name}='never' is unknown; choose one of raise"):
        debug_mode(**{name: "never"})


def network(dtype="float32"):
    """Return inputs, outputs and values of a network with dropout, softmax, views, joins and indexing."""
    rng = np.random.default_rng(0)
    x, y = pt.matrix("x", dtype=dtype), pt.lvector("y")
    sizes = [6, 5, 3]
    weights = [pytensor.shared(rng.normal(size=s).astype(dtype)) for s in itertools.pairwise(sizes)]
    state = pytensor.shared(np.random.default_rng(1))
    state_2, mask = pt.random.bernoulli(0.5, size=(7, 5), rng=state, return_next_rng=True)
    state_3, noise = pt.random.normal(size=(5,), rng=state_2, return_next_rng=True)
    hidden = pt.tanh(x @ weights[0]) * mask.astype(dtype) + noise.astype(dtype)
    log_p = pt.special.log_softmax(hidden @ weights[1], axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    flat = pt.concatenate([gradient.ravel() for gradient in pt.grad(loss, weights)])
    updates = {weight: weight - weight.mean() for weight in weights} | {state: state_3}
    values = [rng.normal(size=(7, 6)).astype(dtype), rng.integers(0, 3, 7)]
    return [x, y], [loss, flat], updates, values


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", slow("float64")])
def test_a_network_passes_with_the_same_numbers(dtype):
    results = []
    for mode in (array_mode(), debug_mode()):
        inputs, outputs, updates, values = network(dtype)
        function = pytensor.function(inputs, outputs, updates=updates, mode=mode)
        results.append([function(*values) for _ in range(2)])
        skipped = getattr(mode.linker.observe, "skipped", [])
        # From Python 3.12 PyTensor's own Composite warns of ``~True``.
        assert [note for note in skipped if "bitwise inversion" not in note] == []
    for plain, checked in zip(*results, strict=True):
        for one, other in zip(plain, checked, strict=True):
            np.testing.assert_array_equal(one, other)


def test_nodes_of_inner_graphs_are_checked():
    x, y = pt.dvectors("xy")
    inner = OpFromGraph([x, y], [Faulty("value")(x, y)[0]])
    function = pytensor.function([x, y], inner(x, y), mode=debug_mode())
    with pytest.raises(DebugError, match="Faulty.*wrong"):
        function(A, B)


def test_sums_may_cancel_elements_may_not():
    x = pt.fvector("x")
    values = np.random.default_rng(0).normal(size=10_001).astype("float32")
    values[-1] = -values[:-1].sum(dtype="float64")
    pytensor.function([x], x.sum(), mode=debug_mode())(values)


class Mute(Faulty):
    """An Op whose own implementation does not run."""

    def perform(self, node, inputs, outputs):
        raise NotImplementedError("C only")


def test_what_cannot_be_compared_is_noted_once():
    x, y = pt.dvectors("xy")
    mode = debug_mode()
    function = pytensor.function([x, y], Mute("none")(x, y), mode=mode)
    for _ in range(2):
        function(A, B)
    (note,) = mode.linker.observe.skipped
    assert note.endswith("NotImplementedError: C only")
    assert note.startswith("Mute")


class Deprecated(Faulty):
    """An Op whose own implementation does what NumPy or Python warns of, and gives a wrong number by it."""

    def perform(self, node, inputs, outputs):
        warnings.warn("~True is -2", DeprecationWarning, stacklevel=1)
        outputs[0][0], outputs[1][0] = -inputs[0], -inputs[1]


def test_an_implementation_that_is_warned_of_is_not_compared_with():
    x, y = pt.dvectors("xy")
    mode = debug_mode()
    function = pytensor.function([x, y], Deprecated("none")(x, y), mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as a script may have it
        np.testing.assert_array_equal(function(A, B), [A + B, A - B])
    (note,) = mode.linker.observe.skipped
    assert note.endswith("DeprecationWarning: ~True is -2")


def test_random_numbers_in_another_state_are_found():
    class Twice(pt.random.basic.ExponentialRV):
        pass

    @array_funcify.register(Twice)
    def twice(op, node, xp):
        def draw(generator, size, scale):
            generator = np.random.Generator(np.random.PCG64(3))
            return generator, generator.exponential(scale, 3)

        return draw

    rng = pytensor.shared(np.random.default_rng(1))
    _, numbers = Twice()(1.0, size=(3,), rng=rng, return_next_rng=True)
    with pytest.raises(DebugError, match="output 0 is a generator in another state than that of perform"):
        pytensor.function([], numbers, mode=debug_mode())()


def test_uninitialised_memory_is_the_same_each_time():
    function = pytensor.function([], pt.empty((3,), dtype="float64") * 2, mode=debug_mode())
    np.testing.assert_array_equal(function(), [194, 194, 194])


def test_the_mode_travels():
    mode = pickle.loads(pickle.dumps(debug_mode(nan="warn")))
    assert mode.linker.observe.nan == "warn"
    assert mode.linker.observe.xp is np


class Count(Op):
    """Running counts, declared as narrow as what is counted, as PyTensor declares them."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.cumsum(inputs[0])


def test_a_dtype_that_perform_does_not_give_is_found():
    x = pt.vector("x", dtype="bool")
    array_funcify.register(Count, lambda op, node, xp: lambda x: xp.cumsum(x, dtype="bool"))
    counted = pytensor.function([x], Count()(x), mode=debug_mode())
    with pytest.raises(DebugError, match=r"output 0 has dtype bool, that of perform int64[^$]*test_debug.py"):
        counted(np.ones(3, bool))


def test_numbers_that_the_declared_dtype_cannot_hold_are_refused():
    class Host(Count):
        """The same without an entry: its own perform runs."""

    array_funcify.register(Host, array_funcify.dispatch(object))
    x = pt.vector("x", dtype="uint8")
    counted = pytensor.function([x], Host()(x), mode=array_mode())
    np.testing.assert_array_equal(
        counted(np.array([100, 3], "uint8")), np.array([100, 103], "uint8"), strict=True
    )
    with pytest.raises(TypeError, match="perform gives uint64, and the declared uint8 cannot hold 300"):
        counted(np.array([100, 200], "uint8"))
