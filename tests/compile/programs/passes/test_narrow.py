"""The pass is tested as it decides, and by numbers and lines of programs on NumPy and the stand-in."""

import pickle
from importlib.util import find_spec

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.scalar.basic import Composite, exp, float32
from pytensor.tensor.elemwise import Elemwise

from support.cases.unary_op import UnaryOp
from synk.compile import ArrayLinker, Profile, array_funcify, array_mode
from synk.compile.compat import optional_class
from synk.compile.observe.debug import Debug, DebugError
from synk.compile.programs.passes.host_or_device import stay
from synk.compile.programs.passes.narrow import narrow, widths
from synk.compile.tables import Width, goes_by_dtype, width

ifelse = optional_class("ifelse", "pytensor.conditional.op", "pytensor.ifelse")

needs_ml_dtypes = pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="bfloat16 needs ml_dtypes")
DTYPES = ["float16", pytest.param("bfloat16", marks=needs_ml_dtypes)]


def decide(inputs, outputs):
    """Return the variables of a graph, as it stands, that are stored in 16 bits."""
    nodes = FunctionGraph(inputs, outputs, clone=False).toposort()
    rules = {node: width(node.op, node) for node in nodes}
    return widths(stay(nodes, outputs, lambda node, side: None).steps, rules, set(outputs))


def casts(inputs, outputs):
    """Return the variables that are converted, each with the dtype that it becomes."""
    nodes = FunctionGraph(inputs, outputs, clone=False).toposort()
    placed = stay(nodes, outputs, lambda node, side: None)
    steps = narrow(placed, outputs, "float16", lambda node, run, reads, gives: run, False).placed.steps
    return [(step.inputs[0], step.to) for step in steps if step.node is None]


def compiled(inputs, outputs, xp=np, dtype="float16", updates=(), **keywords):
    mode = array_mode(ArrayLinker(xp, narrow=dtype, **keywords))
    return pytensor.function(inputs, outputs, updates=list(updates), mode=mode, on_unused_input="ignore")


def of(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def rounded(array, dtype="float16"):
    return array.astype(dtype).astype("float32")


X, W, V = pt.fmatrix("x"), pt.fmatrix("w"), pt.fmatrix("v")
B = pt.fvector("b")


# --- decisions -------------------------------------------------------------------------------------------


def test_what_a_product_reads_is_narrow_and_what_the_caller_gets_is_not():
    sums = X @ W
    hidden = pt.maximum(sums + B, 0)
    result = hidden @ V
    assert decide([X, W, V, B], [result]) == {sums, hidden.owner.inputs[0], hidden}


def test_what_only_float32_is_computed_from_stays_float32():
    sums = X @ W
    assert decide([X, W], [pt.exp(sums).sum()]) == set()
    assert decide([X, W], [(sums * sums).sum()]) == set()


def test_an_exponential_is_float32_but_reads_16_bits():
    sums = X @ W
    powers = pt.exp(sums)
    outputs = [powers @ V, powers.sum(), sums @ V]
    assert decide([X, W, V], outputs) == {sums}
    assert (sums, "float32") not in casts([X, W, V], outputs)


def test_an_exponential_that_only_products_read_is_rounded_once_and_its_input_is_not():
    sums = X @ W
    powers = pt.exp(sums)
    assert decide([X, W, V], [powers @ V]) == {powers}


def test_of_a_composite_only_what_an_exponential_leads_to_is_float32():
    a, b = float32("a"), float32("b")
    both = Elemwise(Composite([a, b], [exp(a) + b, a + b]))
    node = both.make_node(X, W)
    assert [*width(both, node).delicate] == [0]
    sums = X @ W
    powers, total = both(sums, sums.T)
    stored = decide([X, W, V], [powers @ V, powers.sum(), total @ V, total.sum(), sums @ V])
    assert total in stored
    assert powers not in stored


def test_float32_beside_16_bits_gives_float32():
    sums = X @ W
    error = sums - V  # a loss: targets of its shape are float32
    assert decide([X, W, V], [pt.sqr(error).sum(), error @ W]) == set()


def test_what_only_products_read_is_rounded_where_it_is_made():
    scaled = X * 2
    assert decide([X, W], [scaled @ W]) == {scaled}
    assert decide([X, W], [scaled @ W, scaled.sum()]) == set()


def test_a_weight_is_rounded_once_for_it_and_its_transpose():
    hidden = X @ W
    back = (hidden @ V) @ W.T
    assert {*casts([X, W, V], [back])} == {(X, "float16"), (W, "float16"), (V, "float16")}
    assert len(casts([X, W, V], [back])) == 3


def test_readers_of_float32_share_one_copy_made_at_the_first_of_them():
    sums = X @ W
    first, second = pt.cumsum(sums, axis=0), pt.cumsum(sums, axis=1)
    outputs = [sums @ V, first, second]
    assert casts([X, W, V], outputs).count((sums, "float32")) == 1
    f = compiled([X, W, V], outputs)
    lines = [line.split("= ")[-1].split("_")[0].strip() for line in f.vm.jit_fn.source.splitlines()]
    assert lines.index("CumOp") == lines.index("to", lines.index("Dot22")) + 1


def test_views_keep_what_they_see():
    sums = X @ W
    part, turned = sums[1:], sums.T
    assert decide([X, W, V], [part @ V, turned @ V]) == {sums, part, turned}
    assert decide([X, W, V], [part.sum(), sums @ V]) == {sums, part}
    assert part not in decide([X, W, V], [part, sums @ V])  # it is returned
    assert decide([X, W], [X[1:] @ W]) == set()  # to round all of x might cost more
    whole = X.T
    assert decide([X, W], [whole @ W]) == {whole}


def test_what_is_picked_or_joined_stays_as_narrow_as_it_is():
    sums, other = X @ W, X @ V
    rows, joined = sums[[2, 0]], pt.concatenate([sums, other])
    first, second = pt.split(other, [1, 3], n_splits=2, axis=0)
    outputs = [rows @ V, joined @ V, first @ V, second.sum()]
    assert {sums, other, rows, joined, first, second} <= decide([X, W, V], outputs)
    assert "float32" not in [to for _, to in casts([X, W, V], outputs)]
    assert decide([X, W, V], [X[[2, 0]] @ V]) == set()  # a table of float32, such as one of an embedding
    mixed = pt.concatenate([sums, V])
    assert mixed not in decide([X, W, V], [mixed @ V, mixed.sum(), sums @ V])  # a piece is float32


def second_half(s):
    return s[2:] if isinstance(s, np.ndarray) else pt.split(s, [2, 2], n_splits=2, axis=0)[1]


@pytest.mark.parametrize("part", [lambda s: s[0], lambda s: s[[1, 1]], lambda s: s[1:2, 1:2], second_half])
def test_of_a_part_that_is_wanted_wide_no_more_than_the_part_is_converted(device, part):
    sums = X @ W
    assert "float32" not in [to for _, to in casts([X, W, V], [sums @ V, part(sums)])]
    x, w, v = of((4, 4), (4, 4), (4, 4))
    expected = part(rounded(rounded(x) @ rounded(w)))
    for xp in (np, device):
        f = compiled([X, W, V], [sums @ V, part(sums)], xp)
        assert "to_float32" not in f.vm.jit_fn.source
        found = f(x, w, v)[1]
        assert found.dtype == "float32"
        np.testing.assert_array_equal(found, expected)


def test_double_precision_is_left_alone():
    x, w = pt.dmatrix("x"), pt.dmatrix("w")
    assert decide([x, w], [pt.tanh(x @ w) @ w]) == set()


def test_products_with_vectors_are_float32():
    for left in (X, B):
        assert "float16" not in compiled([X, B], left @ B).vm.jit_fn.source


# --- programs --------------------------------------------------------------------------------------------


def mlp(dtype="float32"):
    """Return inputs, loss and parameters of a small network, and values for the inputs."""
    w1, b1, w2 = of((6, 8), (8,), (8, 3))
    parameters = [pytensor.shared(value, name) for value, name in ((w1, "w1"), (b1, "b1"), (w2, "w2"))]
    x, t = pt.fmatrix("x"), pt.fmatrix("t")
    hidden = pt.maximum(x @ parameters[0] + parameters[1], 0)
    loss = pt.sqr(hidden @ parameters[2] - t).mean()
    return [x, t], loss, parameters, of((16, 6), (16, 3), seed=1)


def by_hand(arrays, parameters, narrow):
    """The network in NumPy, rounded where the pass rounds: factors and what lies between them."""
    (x, t), (w1, b1, w2) = arrays, parameters
    x16, w1_16, w2_16 = (rounded(a, narrow) for a in (x, w1, w2))
    sums = rounded(x16 @ w1_16, narrow)
    biased = rounded(sums + b1, narrow)
    hidden = np.maximum(biased, 0)
    error = hidden @ w2_16 - t
    g_out = rounded(error * np.float32(2 / error.size), narrow)
    g_hidden = rounded(g_out @ w2_16.T, narrow) * (biased > 0)
    return np.square(error).mean(), [x16.T @ g_hidden, g_hidden.sum(0), hidden.T @ g_out]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["host", "device"])
def test_the_numbers_are_those_of_rounding_by_hand(device, dtype, side):
    inputs, loss, parameters, values = mlp()
    start = [p.get_value() for p in parameters]
    plain = pytensor.function(inputs, [loss, *pytensor.grad(loss, parameters)], mode=array_mode())(*values)
    f = compiled(inputs, [loss, *pytensor.grad(loss, parameters)], np if side == "host" else device, dtype)
    found, *gradients = f(*values)
    expected, by_products = by_hand(values, start, dtype)
    assert {array.dtype for array in (found, *gradients)} == {np.dtype("float32")}
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for gradient, other in zip(gradients, by_products, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-7)
    error = 2.0 ** (-6 if dtype == "bfloat16" else -9)
    for gradient, other in zip(gradients, plain[1:], strict=True):
        assert 0 < np.abs(gradient - other).max() < error * np.abs(other).max()


def test_parameters_stay_float32_and_gradients_are_born_in_the_flat_vector(device):
    inputs, loss, parameters, values = mlp()
    shapes = [p.get_value().shape for p in parameters]
    flat = pytensor.shared(np.zeros(sum(map(np.prod, shapes)), "float32"), "flat")
    pieces = [
        pt.specify_shape(g, s).flatten() for g, s in zip(pytensor.grad(loss, parameters), shapes, strict=True)
    ]
    f = compiled(inputs, loss, updates=[(flat, pt.concatenate(pieces))])
    f(*values)
    assert flat.get_value().dtype == "float32"
    source = f.vm.jit_fn.source
    products = [line for line in source.splitlines() if "Dot22" in line]
    assert sum("out=part" in line for line in products) == 2  # of the two weights
    _, expected = by_hand(values, [p.get_value() for p in parameters], "float16")
    joined = np.concatenate([g.ravel() for g in expected])
    np.testing.assert_allclose(flat.get_value(), joined, rtol=1e-5, atol=1e-7)


def test_nothing_changes_without_the_option(device):
    inputs, loss, parameters, _ = mlp()
    outputs = [loss, *pytensor.grad(loss, parameters)]
    for xp in (np, device):
        plain, off = (
            pytensor.function(inputs, outputs, mode=array_mode(linker))
            for linker in (ArrayLinker(xp), ArrayLinker(xp, narrow=None))
        )
        assert off.vm.jit_fn.source == plain.vm.jit_fn.source
        assert "float16" not in plain.vm.jit_fn.source
        assert "float16" in compiled(inputs, outputs, xp).vm.jit_fn.source


def test_a_result_is_not_written_over_an_input_of_another_width(device):
    sums = X @ W
    for xp in (np, device):
        f = compiled([X, W, V], [(pt.exp(sums) * 2).sum(), sums @ V], xp)
        x, w, v = of((5, 5), (5, 5), (5, 5))
        expected = (x.astype("float16").astype("float32") @ w.astype("float16").astype("float32")).astype(
            "float16"
        )
        total, result = f(x, w, v)
        np.testing.assert_allclose(total, (np.exp(expected.astype("float32")) * 2).sum(), rtol=1e-4)
        np.testing.assert_allclose(
            result, expected.astype("float32") @ v.astype("float16"), rtol=1e-3, atol=1e-4
        )


def test_constants_are_rounded_when_the_graph_is_compiled(device):
    weights = of((4, 4))[0]
    for xp in (np, device):
        f = compiled([X], X @ pt.constant(weights), xp)
        assert f.vm.jit_fn.source.count("to_float16") == 1  # that of x
        (x,) = of((3, 4), seed=5)
        np.testing.assert_allclose(f(x), rounded(x) @ rounded(weights), rtol=1e-5)


def test_what_runs_in_one_branch_alone_is_converted_there():
    c = pt.bscalar("c")
    sums, other = X @ W, X @ V
    f = compiled([c, X, W, V], ifelse(c, pt.cumsum(sums @ V, axis=0), pt.cumsum(other @ W, axis=0)))
    x, w, v = of((4, 4), (4, 4), (4, 4))
    for condition, (one, two) in ((1, (w, v)), (0, (v, w))):
        expected = np.cumsum(x @ one @ two, axis=0)
        np.testing.assert_allclose(f(condition, x, w, v), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: pt.switch(s > 0, s, -s) @ V,
        lambda s: pt.clip(s, -1, 1).T @ V,
        lambda s: pt.switch(pt.isnan(s) | (s < V), s, V) @ (s @ V),
        lambda s: (s + V + W) @ V,  # two float32 beside it
        lambda s: pt.sigmoid(s) @ V + s.sum(axis=0) + s.max(axis=1, keepdims=True),
        lambda s: s.reshape((-1, 2, 8)).reshape((4, 4)) @ V,
        lambda s: pt.concatenate([s, V])[2:6] @ V + pt.special.softmax(s @ V, axis=1),
        lambda s: pt.set_subtensor(s[0], 0) @ V + s @ W,
        lambda s: 0.5 * V + 2 * ((s @ V) @ W),
        lambda s: pt.stack([s, V]) @ pt.stack([V, s]),
        lambda s: s[[2, 0, 1, 1]] @ V + s[[1]].sum(),
        lambda s: pt.concatenate([s, s @ V])[::2] @ V + pt.concatenate([s, V]).sum(),
        lambda s: pt.add(*pt.split(s, [2, 2], n_splits=2, axis=1)) @ V[:2] + s.sum(),
        lambda s: (s @ V) @ (s.T @ V) + s.prod() + s.shape[0].astype("float32"),
    ],
)
def test_ops_compute_in_float32(device, build):
    result = build(X @ W)
    values = of((4, 4), (4, 4), (4, 4))
    expected = pytensor.function([X, W, V], result, mode=array_mode())(*values)
    for xp in (np, device):
        found = compiled([X, W, V], result, xp)(*values)
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
    checked = compiled([X, W, V], result, observe=Debug())(*values)
    np.testing.assert_allclose(checked, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


def test_a_piece_of_a_join_that_a_product_reads_is_rounded_and_copied_there():
    x, w, v = of((4, 4), (4, 4), (4, 4))
    flat = pytensor.shared(np.zeros(32, "float32"), "flat")
    piece, other = (pt.specify_shape(product, (4, 4)) for product in (X @ W, X @ V))
    f = compiled([X, W, V], piece @ V, updates=[(flat, pt.concatenate([piece.flatten(), other.flatten()]))])
    expected = rounded(rounded(x) @ rounded(w))
    np.testing.assert_allclose(f(x, w, v), expected @ rounded(v), rtol=1e-5)
    np.testing.assert_array_equal(flat.get_value()[:16], expected.ravel())
    np.testing.assert_array_equal(flat.get_value()[16:], (rounded(x) @ rounded(v)).ravel())
    assert sum("out=part" in line for line in f.vm.jit_fn.source.splitlines()) == 1


def test_sums_that_are_wanted_in_double_precision_are(device):
    sums = X @ W
    x, w, v = of((4, 4), (4, 4), (4, 4))
    expected = rounded(rounded(x) @ rounded(w)).sum(dtype="float64")
    for xp in (np, device):
        total, _ = compiled([X, W, V], [sums.sum(dtype="float64"), sums @ V], xp)(x, w, v)
        assert total.dtype == "float64"
        np.testing.assert_allclose(total, expected, rtol=1e-14)


class OfTheHost(UnaryOp):
    """An Op without an entry; it notes what it gets."""

    seen = ()

    def perform(self, node, inputs, outputs):
        OfTheHost.seen = (*OfTheHost.seen, (type(inputs[0]), str(inputs[0].dtype)))
        outputs[0][0] = inputs[0].copy()


def test_what_goes_to_the_host_is_float32(device):
    sums = X @ W
    OfTheHost.seen = ()
    for xp in (np, device):
        f = compiled([X, W, V], [OfTheHost()(sums) + 1, sums @ V], xp)
        f(*of((4, 4), (4, 4), (4, 4)))
    assert OfTheHost.seen == ((np.ndarray, "float32"),) * 2


class Doubled(Op):
    """Twice a matrix; a sum, if ``total``: the gradient of a weight is one."""

    __props__ = ("total",)

    def __init__(self, total=False):
        self.total = total

    def make_node(self, x):
        return Apply(self, [x], [pt.fvector() if self.total else x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0].sum(axis=0) if self.total else 2 * inputs[0]


@width.register(Doubled)
def width_of_doubled(op, node):
    return Width(rounds=(0,)) if op.total else Width(takes=(0,), requires=(0,), gives=(0,))


@goes_by_dtype.register(Doubled)
def doubled_goes_by_dtype(op, node, xp):
    return True


@array_funcify.register(Doubled)
def doubled(op, node, xp):
    two = xp.float32(2)
    return lambda x, out=None: (two * (x.sum(axis=0) if op.total else x)).astype(x.dtype)


def test_what_goes_by_dtypes_is_asked_for_what_it_gives(device):
    sums = X @ W
    for xp in (np, device):
        profile = Profile()
        outputs = [Doubled()(sums) @ V, Doubled(total=True)(sums)]
        f = compiled([X, W, V], outputs, xp, observe=profile)
        x, w, v = of((4, 4), (4, 4), (4, 4))
        with profile.call():
            product, total = f(x, w, v)
        made = {run.name.partition("(")[0]: str(run.outputs[0][0]) for run in profile._slices}
        assert (made["Doubled{total=False}"], made["Doubled{total=True}"]) == ("float16", "float32")
        np.testing.assert_allclose(product, 2 * (x @ w) @ v, rtol=2e-2, atol=2e-2)
        np.testing.assert_allclose(total, 2 * (x @ w).sum(axis=0), rtol=2e-2, atol=2e-2)


# --- tools -----------------------------------------------------------------------------------------------


def test_a_profile_shows_what_is_kept_in_16_bits():
    profile = Profile()
    f = compiled([X, W, V], pt.tanh(X @ W) @ V, observe=profile)
    with profile.call():
        f(*of((4, 4), (4, 4), (4, 4)))
    dtypes = [str(run.outputs[0][0]) for run in profile._slices]
    assert dtypes == ["float16", "float16", "float32"]


@pytest.mark.parametrize("fault", ["dtype", "value"])
def test_debug_finds_faults_in_16_bits(fault):
    debug = Debug()

    def broken(node, implementation):
        if str(node.op) != "Dot22":
            return debug(node, implementation)

        def run(*inputs):
            result = implementation(*inputs)
            return result.astype("float32") if fault == "dtype" else result * np.float16(1.01)

        run.stored = implementation.stored
        return debug(node, run)

    f = compiled([X, W, V], pt.tanh(X @ W) @ V, observe=broken)
    said = "has dtype float32, the program keeps it in float16" if fault == "dtype" else "are wrong"
    with pytest.raises(DebugError, match=said):
        f(*of((4, 4), (4, 4), (4, 4)))


@needs_ml_dtypes
def test_debug_tells_the_widths_of_one_value_apart():
    f = compiled([X, W], 0.25 * (X @ W) - X, dtype="bfloat16", observe=Debug())
    assert "Gemm" in f.vm.jit_fn.source  # it adds to the float32 x, and multiplies it with 16 bits
    x, w = of((4, 4), (4, 4))
    product = rounded(x, "bfloat16") @ rounded(w, "bfloat16")
    np.testing.assert_allclose(f(x, w), 0.25 * product - x, rtol=1e-5, atol=1e-6)


def test_linkers_travel_with_their_option():
    linker = pickle.loads(pickle.dumps(ArrayLinker(narrow="float16")))
    assert linker.narrow == "float16"
    assert "narrow='float16'" in repr(linker)


def test_options_are_checked(monkeypatch):
    with pytest.raises(ValueError, match="narrow='half' is unknown; choose one of float16, bfloat16"):
        ArrayLinker(narrow="half")
    monkeypatch.setattr("synk.compile.programs.text.transfer.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        ArrayLinker(narrow="bfloat16")
