"""Random graphs with updates: the numbers of PyTensor's own linker, in the arrays where they belong.

A recipe is a list of steps. Each applies operations to earlier values, so that values are read in many
places, viewed, overwritten and joined:

    recipe -> Graph: values, outputs, updates -> called twice by the oracle and by the mode under test

``RANDOM_GRAPHS=5000`` runs as many examples instead of the few that every run repeats.
"""

import os
from dataclasses import dataclass, field

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pytensor.compile.mode import Mode

from support.cuda.provider import needs_emulator
from support.cupy.array_modules import TWIN_ON_A_GPU
from support.slow import slow
from synk.compile import ArrayLinker, Debug, array_mode, debug_mode
from synk.compile.compat import optional_class
from synk.compile.native.compiler import find_compiler
from synk.compile.programs.elementwise.fusion import TAG

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")

# The oracle asks for the flags of a BLAS that it does not use.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")

N_EXAMPLES = int(os.environ.get("RANDOM_GRAPHS", 0))
FLOATS = ("float32", "float64")


def unfused(mode):
    """Return a mode without kernels, which take half a second each to compile."""
    return Mode(mode.linker, mode.provided_optimizer.excluding(TAG))


@dataclass
class Graph:
    """Values so far, by number of axes; every axis has length ``n``."""

    n: int
    values: dict = field(default_factory=lambda: {0: [], 1: [], 2: []})

    def add(self, value):
        self.values[value.type.ndim].append(value)

    def pick(self, ndim, number):
        """Return a value, the newest for 0."""
        values = self.values[ndim]
        return values[-1 - number % len(values)]

    def real(self, ndim, number):
        """Like `pick`, but not of integers: PyTensor's rewrite to Gemm loses them from sums."""
        value = self.pick(ndim, number)
        return value if value.dtype in FLOATS else value.astype("float64")

    def known(self, value):
        return pt.specify_shape(value, (self.n,) * value.type.ndim)


# --- steps: from the graph and three numbers to new values ---------------------------------------


def terms(g, i, j, k):
    return [g.real(2, i) + g.real(2, j), g.real(2, k) + g.real(1, i) + g.real(2, j) + g.real(0, k)]


def products(g, i, j, k):
    v = g.pick(1, j)
    return [g.pick(2, i) * pt.tanh(g.pick(2, j)) * v[:, None], v * pt.tanh(g.pick(1, k)) - g.real(1, i)]


def differences(g, i, j, k):
    return [g.real(2, i) - g.real(2, j), pt.maximum(g.pick(2, k), g.pick(1, i)), abs(g.pick(0, j))]


def curves(g, i, j, k):
    return [pt.exp(-abs(g.pick(2, i))), pt.tanh(g.pick(1, j)), pt.sigmoid(g.pick(2, k)), -g.pick(1, i)]


def choices(g, i, j, k):
    return [pt.switch(g.pick(2, i) > 0.1234, g.pick(2, j), g.pick(2, k))]


def casts(g, i, j, k):
    whole = (pt.tanh(g.pick(2, i)) * 3 + 0.1237).astype("int64")
    return [whole, g.pick(2, j).astype(FLOATS[k % 2]), g.pick(1, i).astype(FLOATS[j % 2])]


def dots(g, i, j, k):
    a, b, v = g.pick(2, i), g.pick(2, j), g.pick(1, k)
    return [a @ b / g.n, a @ v / g.n, v @ b / g.n]


def gemms(g, i, j, k):
    a, b, v = g.real(2, i), g.real(2, j), g.real(1, k)
    return [a - 0.25 * (b @ g.real(2, k)), v + 0.5 * (a @ v), b + pt.outer(v, g.real(1, i))]


def transposes(g, i, j, k):
    return [g.pick(2, i).T, g.pick(2, j).T]


def regroupings(g, i, j, k):
    flat = g.pick(2, i).reshape((-1,))
    return [flat.reshape((g.n, g.n)), flat[: g.n], pt.tanh(g.pick(2, j).flatten()).reshape((g.n, g.n))]


def views(g, i, j, k):
    m = g.pick(2, j)
    return [g.pick(2, i)[::-1], m[:, ::-1], g.pick(2, k)[j % g.n], m[:, k % g.n], g.pick(1, i)[::-1]]


def shuffles(g, i, j, k):
    m, v = g.pick(2, i), g.pick(1, j)
    return [pt.concatenate([m[1::2], m[::2]]), pt.concatenate([v[1:], v[:1]]), v[k % g.n]]


def settings_of_parts(g, i, j, k):
    m, v = g.pick(2, i), g.pick(1, j)
    return [
        pt.set_subtensor(m[k % g.n], v.astype(m.dtype)),
        pt.set_subtensor(m[:, ::-1][::2], g.pick(2, k)[::2].astype(m.dtype)),
        pt.set_subtensor(v[k % g.n :], g.pick(0, i).astype(v.dtype)),
    ]


def increments(g, i, j, k):
    m, v = g.pick(2, i), g.pick(1, j)
    return [
        pt.inc_subtensor(m[::2], g.pick(2, j)[::2].astype(m.dtype)),
        pt.inc_subtensor(m.T[k % g.n], v.astype(m.dtype)),
        pt.inc_subtensor(v[::-1][: k % g.n], g.pick(0, j).astype(v.dtype)),
    ]


def advanced(g, i, j, k):
    m, v, w = g.pick(2, i), g.pick(1, j), g.pick(1, k)
    rows = (np.arange(g.n) * (k + 1)) % g.n
    return [
        m[rows],
        pt.inc_subtensor(m[rows], v.astype(m.dtype)),
        pt.set_subtensor(v[np.arange(g.n)[::-1]], w.astype(v.dtype)),
        m[np.arange(g.n), rows],
    ]


def sums(g, i, j, k):
    m, v = g.pick(2, i), g.pick(1, j)
    return [m.sum(0) / g.n, g.pick(2, j).max(1), g.pick(2, k).mean(), v.sum() / g.n, v.max()]


def joins(g, i, j, k):
    a, b, v = g.pick(2, i), g.pick(2, j), g.pick(1, k)
    twice = pt.concatenate([g.known(a), g.known(b), g.known(a)])
    return [
        twice[g.n // 2 :][: g.n],
        twice[-g.n :],
        pt.stack([v, v, g.pick(1, i)])[1],
        pt.stack([v, v]).sum(0),
    ]


def softmaxes(g, i, j, k):
    return [pt.special.softmax(g.pick(2, i) * 1.0, axis=j % 2)]


def fills(g, i, j, k):
    return [pt.alloc(g.pick(0, i), g.n, g.n), pt.alloc(g.pick(1, j), g.n, g.n), pt.zeros_like(g.pick(2, k))]


def branches(g, i, j, k):
    a, b, c = [g.known(g.pick(2, p).astype("float64")) for p in (i, j, k)]
    holds = g.pick(1, k).sum() > 0.1234
    return [ifelse(holds, a, pt.tanh(b)), *ifelse(holds, [a, b], [b, c - a])]


def loops(g, i, j, k):
    start, other = [g.known(g.pick(2, p).astype("float64")) for p in (i, j)]
    states = pytensor.scan(
        lambda h, x: pt.tanh(h @ x / g.n) + x, None, start, other, n_steps=3, return_updates=False
    )
    return [states[-1 - k % 3]]


STEPS = [
    *(terms, products, differences, curves, choices, casts, dots, gemms, transposes, regroupings, views),
    *(shuffles, settings_of_parts, increments, advanced, sums, joins, softmaxes, fills, branches, loops),
]
LAYOUTS = [
    np.ascontiguousarray,
    np.asfortranarray,
    lambda a: np.array(a)[::-1],
    lambda a: np.repeat(a, 2, -1)[..., ::2],
]

number = st.integers(0, 40)
dtypes = st.sampled_from([*FLOATS, *FLOATS, "int64"])
updates = st.one_of(st.none(), *[st.tuples(number, st.booleans())] * 4)
recipes = st.fixed_dictionaries(
    {
        "n": st.sampled_from([4, 3, 1, 33]),
        "known": st.sampled_from([True, True, False]),
        "dtypes": st.sampled_from(FLOATS).flatmap(
            lambda d: st.lists(st.just(d) | dtypes, min_size=8, max_size=8)
        ),
        "layouts": st.lists(st.sampled_from(LAYOUTS), min_size=8, max_size=8),
        "steps": st.lists(st.tuples(st.sampled_from(STEPS), number, number, number), min_size=2, max_size=10),
        "outputs": st.lists(st.tuples(st.integers(0, 2), number, st.booleans()), max_size=3),
        "updates": st.lists(updates, min_size=4, max_size=4),
        "pieces": st.none() | st.lists(number, min_size=2, max_size=4),
    }
)


def with_products(recipe):
    """Return a recipe with a product of the newest matrix, float32, after every step but casts."""
    steps = [step for step in recipe["steps"] if step[0] not in (casts, branches, loops)]
    steps = [part for step in steps for part in (step, (dots, 0, *step[2:]))]
    return recipe | {"dtypes": ["float32"] * 8, "steps": [(dots, 0, 1, 2), *steps]}


def array(seed, dtype, layout, *shape):
    value = np.random.default_rng(seed).standard_normal(shape)
    # Layouts make views; astype would make them plain.
    return layout((value * 3 if dtype == "int64" else value).astype(dtype)) if shape else value.astype(dtype)


class Case:
    """A recipe's graph, with values for two calls."""

    def __init__(self, recipe):
        self.recipe = recipe
        n = recipe["n"]
        self.graph = graph = Graph(n)
        ranks = (2, 1, 0, 2, 2, 1, 0)
        self.forms = [
            (d, f, *[n] * r) for d, f, r in zip(recipe["dtypes"], recipe["layouts"], ranks, strict=False)
        ]
        self.inputs, self.shareds = [], []
        for k, (dtype, _, *shape) in enumerate(self.forms):
            known = shape if recipe["known"] else [None] * len(shape)
            if k < 3:
                self.inputs.append(pt.tensor(f"x{k}", dtype=dtype, shape=known))
            else:
                self.shareds.append(pytensor.shared(np.zeros(shape, dtype), shape=tuple(known), name=f"s{k}"))
        self.flat = pytensor.shared(np.zeros(0, recipe["dtypes"][7]), name="flat")
        for value in (*self.inputs, *self.shareds):
            graph.add(value)
        for step, *numbers in recipe["steps"]:
            for value in step(graph, *numbers):
                graph.add(value)
        self.outputs = [pytensor.Out(graph.pick(r, k), borrow=b) for r, k, b in recipe["outputs"]]
        self.borrowed = [b for _, _, b in recipe["outputs"]]
        self.updates = dict(self._updates())

    def _updates(self):
        for shared, choice in zip(self.shareds, self.recipe["updates"], strict=True):
            if choice:
                value = self.graph.pick(shared.type.ndim, choice[0])
                value = value if value.dtype == shared.dtype else value.astype(shared.dtype)
                value = self.graph.known(value) if choice[1] and shared.type.ndim else value
                # A shared variable that may have any length takes no value whose length is known to be one.
                if self.recipe["known"] or 1 not in value.type.shape:
                    yield shared, value
        if self.recipe["pieces"]:
            pieces = [self.graph.pick(1 + k % 2, k) for k in self.recipe["pieces"]]
            pieces = [self.graph.known(piece.astype(self.flat.dtype)).reshape((-1,)) for piece in pieces]
            yield self.flat, pt.concatenate(pieces)

    def values(self, call):
        return [array(10 * call + k, *form) for k, form in enumerate(self.forms[:3])]

    def reset(self):
        for k, shared in enumerate(self.shareds):
            shared.set_value(array(100 + k, *self.forms[3 + k]), borrow=True)
        sizes = [self.graph.n ** (1 + k % 2) for k in self.recipe["pieces"] or ()]
        self.flat.set_value(np.zeros(sum(sizes), self.flat.dtype), borrow=True)

    def storages(self):
        return [shared.get_value(borrow=True) for shared in (*self.shareds, self.flat)]

    def states(self):
        return [to_host(value) for value in self.storages()]


def to_host(value):
    return value.get() if hasattr(value, "get") else np.array(value)


def assert_close(results, expected, rtol):
    for result, reference in zip(results, expected, strict=True):
        assert type(result) is np.ndarray
        assert (result.dtype, result.shape) == (reference.dtype, reference.shape)
        size = np.abs(reference[np.isfinite(reference)]).max(initial=1)
        np.testing.assert_allclose(result, reference, rtol=rtol, atol=rtol * size)


def check(recipe, oracle, mode):
    """Compare two calls of a recipe's function with the oracle, and look at all memory."""
    case = Case(recipe)
    plain = [out.variable for out in case.outputs]
    case.reset()
    expected = []
    for call in range(2):
        outputs = oracle(case.inputs, plain, case.values(call), updates=case.updates)
        expected.append(([np.array(o) for o in outputs], case.states()))
    case.reset()
    function = pytensor.function(
        case.inputs, case.outputs, updates=case.updates, mode=mode, on_unused_input="ignore"
    )
    rtol = 2e-4  # what is float32 anywhere is rounded so, and in another order
    kept, storages = [], case.storages()
    for call, (outputs, states) in enumerate(expected):
        values, before = case.values(call), case.values(call)
        results = function(*values)
        for value, old in zip(values, before, strict=True):
            np.testing.assert_array_equal(value, old)
        assert_close(results, outputs, rtol)
        assert_close(case.states(), states, rtol)
        own = [r for r, borrowed in zip(results, case.borrowed, strict=True) if not borrowed]
        shared = case.storages()
        arrays = [getattr(s, "_value", s) for s in shared if not type(s).__module__.startswith("cupy")]
        for i, result in enumerate(own):
            assert not any(np.shares_memory(result, o) for o in [*values, *own[:i], *kept, *arrays])
        for i, one in enumerate(arrays):
            assert not any(np.shares_memory(one, o) for o in [*values, *arrays[:i]])
        if mode.linker.xp is np:  # on a device, what both sides read moves
            assert all(old is new for old, new in zip(storages, shared, strict=True))
        storages = shared
        for result in own:
            result[...] = 97  # whose it is may write to it
        kept = own


def graphs(count):
    """Return settings for as many random graphs, or for those that the environment asks for."""
    return settings(
        max_examples=N_EXAMPLES or count,
        derandomize=not N_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than a test may
        suppress_health_check=list(HealthCheck),
    )


few_graphs = graphs(8)


@given(recipe=recipes)
@few_graphs
@pytest.mark.slow
@pytest.mark.parametrize("side", ["host", slow("device")])
def test_random_graphs_in_16_bits_keep_to_the_definitions(side, device, recipe):
    """Every node is checked by itself; the results have the dtypes and shapes of float32's."""
    xp = np if side == "host" else device
    debug = ArrayLinker(xp, narrow="float16", observe=Debug(nan="ignore", xp=xp))
    plain, narrow = (results(Case(with_products(recipe)), linker) for linker in (ArrayLinker(), debug))
    for found, expected in zip(narrow, plain, strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)


def results(case, linker):
    """Return the results of two calls, and the shared variables after them."""
    case.reset()
    mode = unfused(array_mode(linker))
    f = pytensor.function(
        case.inputs, case.outputs, updates=case.updates, mode=mode, on_unused_input="ignore"
    )
    returned = [np.array(result) for call in range(2) for result in f(*case.values(call))]
    return [*returned, *case.states()]


needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


def narrow(linker):
    """Return a mode whose "16 bits" are 32: what is read, kept and overwritten is that of 16 bits."""
    linker.narrow, linker.native = "float32", False
    return unfused(array_mode(linker))


modes = {
    "unfused": lambda device: unfused(array_mode()),
    "fused": lambda device: array_mode(),
    "device": lambda device: array_mode(ArrayLinker(device)),
    "kernels": lambda device: array_mode(ArrayLinker(device)),
    "cupy": lambda device: array_mode(ArrayLinker(pytest.importorskip("cupy"))),
    "debug": lambda device: unfused(debug_mode(nan="ignore")),
    "narrow": lambda device: narrow(ArrayLinker(observe=Debug(nan="ignore"))),
    "narrow device": lambda device: narrow(ArrayLinker(device)),
}
NAMES = [
    *("unfused", pytest.param("fused", marks=needs_compiler), slow("device")),
    pytest.param("kernels", marks=needs_emulator),
    pytest.param("cupy", marks=[*TWIN_ON_A_GPU, pytest.mark.soak]),  # many kernels to compile
    *map(slow, ["debug", "narrow", "narrow device"]),
]


@pytest.mark.parametrize("name", NAMES)
@given(recipe=recipes)
@few_graphs
def test_random_graphs_give_the_numbers_of_the_oracle(name, oracle, device, recipe, request):
    if name.startswith("narrow"):
        recipe = with_products(recipe)
    # What passes for CuPy has kernels, which g++ compiles.
    check(recipe, oracle, modes[name](request.getfixturevalue("cupy") if name == "kernels" else device))


@pytest.mark.slow
@given(recipe=recipes)
@graphs(4)
def test_random_graphs_in_narrow_numbers_give_the_numbers_of_the_oracle(oracle, recipe):
    """As ``narrow`` among the modes, of fewer graphs."""
    check(with_products(recipe), oracle, modes["narrow"](None))


x = pt.tensor("x", dtype="float64", shape=(2, 2))
X = np.arange(4.0).reshape(2, 2)


@pytest.fixture
def shared():
    """Return shared matrices of known shape, and a vector that holds two."""
    first, second = [pytensor.shared(np.full((2, 2), k, "float64"), shape=(2, 2)) for k in (1.0, 2.0)]
    return first, second, pytensor.shared(np.zeros(8))


def call(inputs, outputs, updates):
    function = pytensor.function(inputs, outputs, updates=updates, mode=unfused(array_mode()))
    return function(*[X.copy() for _ in inputs])


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[::-1], lambda a: a.T])
def test_an_old_value_that_becomes_another_variable_is_not_written_over_before(shared, view):
    first, second, _ = shared
    first.set_value(X)
    call([x], [], {first: pt.dot(x, x), second: view(first)})
    np.testing.assert_array_equal(second.get_value(), view(X))
    np.testing.assert_array_equal(first.get_value(), X @ X)


def test_a_returned_piece_is_not_in_the_memory_of_the_join(shared):
    flat = shared[2]
    piece = pt.dot(x, x)
    (result,) = call([x], [piece], {flat: pt.concatenate([piece.ravel(), pt.exp(-x).ravel()])})
    result[...] = 97
    np.testing.assert_array_equal(flat.get_value()[:4], (X @ X).ravel())


def test_a_returned_join_is_a_piece_of_another(shared):
    flat = shared[2]
    rows = pt.concatenate([x[1:], x[:1]])
    (result,) = call([x], [rows], {flat: pt.concatenate([rows.ravel(), x.ravel()])})
    np.testing.assert_array_equal(result, X[::-1])
    np.testing.assert_array_equal(flat.get_value(), [*X[::-1].ravel(), *X.ravel()])


def test_a_piece_that_grows_another_variable_is_not_in_the_memory_of_the_join(shared):
    flat, grown = shared[2], pytensor.shared(np.zeros((1, 1)))
    piece = pt.dot(x, x)
    call([x], [], {flat: pt.concatenate([piece.ravel(), pt.exp(-x).ravel()]), grown: piece})
    assert not np.shares_memory(grown.get_value(borrow=True), flat.get_value(borrow=True))
    np.testing.assert_array_equal(grown.get_value(), X @ X)
