"""Layers as graphs, by themselves and put together; then networks that train on two ranks."""

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import synk
from support.slow import slow
from synk import ops
from synk.extensions import initialisers, schedules, train, updates
from synk.extensions.layers import (
    AvgPool,
    BatchNorm,
    Conv,
    ConvTranspose,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    GlobalAvgPool,
    GroupNorm,
    Joined,
    Layer,
    LayerNorm,
    MaxPool,
    ReLU,
    Residual,
    Sequential,
    Upsample,
    summary,
)

N_ROWS = 12
PLAIN = Mode("py", None)  # graphs as they are written, which spares rewriting them


def generator():
    return np.random.default_rng(0)


def images(dtype="float64", channels=3):
    return pt.tensor("x", shape=(None, channels, 8, 8), dtype=dtype)


def matrix(units, dtype="float64"):
    return pt.tensor("x", shape=(None, units), dtype=dtype)


def drawn(x, n_rows=N_ROWS):
    """Values for an input, of its static shape."""
    return np.random.default_rng(1).normal(size=(n_rows, *x.type.shape[1:])).astype(x.dtype)


def run(x, outputs, value, **options):
    return pytensor.function([x], outputs, mode=PLAIN, **options)(value)


def make_block(n_in, n_out, rng, stride=1, dtype="float64"):
    """The block of a residual network; its shortcut changes the shape where the branch does."""
    branch = Sequential(
        conv1=Conv(n_in, n_out, 3, stride=stride, padding=1, bias=False, rng=rng, dtype=dtype),
        norm1=BatchNorm(n_out, dtype=dtype),
        relu=ReLU(),
        conv2=Conv(n_out, n_out, 3, padding=1, bias=False, rng=rng, dtype=dtype),
        norm2=BatchNorm(n_out, init=initialisers.zeros, dtype=dtype),
    )
    if stride == 1 and n_in == n_out:
        return Residual(branch, activation=ops.relu)
    shortcut = Sequential(
        conv=Conv(n_in, n_out, 1, stride=stride, bias=False, rng=rng, dtype=dtype),
        norm=BatchNorm(n_out, dtype=dtype),
    )
    return Residual(branch, shortcut, activation=ops.relu)


def make_network(dtype="float64", dropped=0.5):
    rng = generator()
    return Sequential(
        stem=Conv(3, 8, 3, padding=1, bias=False, rng=rng, dtype=dtype),
        norm=BatchNorm(8, dtype=dtype),
        relu=ReLU(),
        pool=MaxPool(3, 2, padding=1),
        stage=Sequential(make_block(8, 8, rng, dtype=dtype), make_block(8, 16, rng, stride=2, dtype=dtype)),
        mean=GlobalAvgPool(),
        drop=Dropout(dropped, seed=7),
        head=Dense(16, 4, rng=rng, dtype=dtype),
    )


# --- one layer -------------------------------------------------------------------------------------


def test_dense():
    x = matrix(5)
    layer = Dense(5, 1, rng=generator(), dtype="float64")
    layer.params["b"].set_value([3.0])
    value = drawn(x)
    np.testing.assert_allclose(run(x, layer(x), value), value @ layer.params["W"].get_value() + 3)
    assert list(Dense(5, 2, bias=False, rng=generator()).params) == ["W"]
    assert layer(x).type.shape == (None, 1)


def test_dense_works_along_the_last_of_more_axes():
    x = pt.tensor("x", shape=(None, None, 2, 5), dtype="float64")
    layer = Dense(5, 3, rng=generator(), dtype="float64")
    value = np.random.default_rng(1).normal(size=(4, 6, 2, 5))
    y = layer(x)
    assert y.type.shape == (None, None, 2, 3)
    np.testing.assert_allclose(run(x, y, value), value @ layer.params["W"].get_value(), rtol=1e-12)


def test_layer_norm_normalises_each_row():
    x = pt.tensor("x", shape=(None, 3, 5), dtype="float64")
    layer = LayerNorm(5, eps=1e-3, dtype="float64")
    gamma, beta = np.arange(1.0, 6), np.arange(5.0)
    layer.params["gamma"].set_value(gamma)
    layer.params["beta"].set_value(beta)
    value = 3 * drawn(x) + 2
    centred = value - value.mean(-1, keepdims=True)
    expected = centred / np.sqrt(value.var(-1, keepdims=True) + 1e-3) * gamma + beta
    np.testing.assert_allclose(run(x, layer(x), value), expected, rtol=1e-9, atol=1e-12)
    assert layer.training(x)[1] == []


@pytest.mark.parametrize("groups", [2, slow(6)])
def test_group_norm_normalises_groups_of_each_image(groups):
    x = images(channels=6)
    layer = GroupNorm(6, groups=groups, eps=1e-3, dtype="float64")
    gamma, beta = np.arange(1.0, 7), np.arange(6.0)
    layer.params["gamma"].set_value(gamma)
    layer.params["beta"].set_value(beta)
    value = 3 * drawn(x) + 2
    parts = value.reshape(len(value), groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-3)
    expected = parts.reshape(value.shape) * gamma.reshape(-1, 1, 1) + beta.reshape(-1, 1, 1)
    np.testing.assert_allclose(run(x, layer(x), value), expected, rtol=1e-9, atol=1e-12)


def test_embedding_looks_vectors_up():
    words = pt.lmatrix("words")
    layer = Embedding(7, 3, rng=generator(), dtype="float64")
    W, value = layer.params["W"].get_value(), np.array([[6, 0, 6], [1, 1, 2]])
    y, gradient = run(
        words, [layer(words), pytensor.grad((layer(words) ** 2).sum(), layer.params["W"])], value
    )
    np.testing.assert_array_equal(y, W[value])
    counts = np.bincount(value.ravel(), minlength=7)
    np.testing.assert_allclose(gradient, 2 * W * counts[:, None], rtol=1e-12)
    with pytest.raises(IndexError):
        run(words, layer(words), [[7]])


def test_a_transposed_convolution_takes_its_options():
    x = images(channels=6)
    options = {"stride": (2, 3), "padding": 1, "output_padding": (1, 0), "dilation": (1, 2), "groups": 3}
    layer = ConvTranspose(6, 9, (3, 2), **options, rng=generator(), dtype="float64")
    W, b = layer.params["W"], layer.params["b"]
    assert W.get_value().shape == (6, 3, 3, 2)
    b.set_value(np.arange(9.0))
    found, expected = run(x, [layer(x), ops.conv_transpose2d(x, W, b, **options)], drawn(x))
    np.testing.assert_array_equal(found, expected)
    assert layer(x).type.shape[1:] == found.shape[1:]
    assert "output_padding=(1, 0)" in repr(layer)


def test_a_convolution_takes_its_options():
    x = images()
    options = {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2), "groups": 3}
    layer = Conv(3, 6, (3, 2), **options, rng=generator(), dtype="float64")
    W, b = layer.params["W"], layer.params["b"]
    assert W.get_value().shape == (6, 1, 3, 2)
    b.set_value(np.arange(6.0))
    found, expected = run(x, [layer(x), ops.conv2d(x, W, b, **options)], drawn(x))
    np.testing.assert_array_equal(found, expected)
    assert layer(x).type.shape[1] == 6


@pytest.mark.parametrize("layer", [Dense, Conv])
def test_weights_come_from_the_initialiser(layer):
    asked = []

    def init(shape, rng, dtype):
        asked.append((shape, rng, dtype))
        return np.full(shape, 2.0)

    rng = generator()
    size = (3,) if layer is Conv else ()
    made = layer(4, 6, *size, init=init, rng=rng, dtype="float32")
    shape = (6, 4, 3, 3) if layer is Conv else (4, 6)
    assert asked == [(shape, rng, "float32")]
    W, b = (made.params[key].get_value() for key in "Wb")
    assert (W.dtype, b.dtype, W.shape, b.shape) == (np.float32, np.float32, shape, (6,))
    assert (W == 2).all()
    assert (b == 0).all()


def test_the_same_seed_gives_the_same_network():
    one, other = make_network("float32"), make_network("float32")
    for key, variable in one.params.items():
        assert variable.dtype == "float32"
        np.testing.assert_array_equal(variable.get_value(), other.params[key].get_value())


@pytest.mark.parametrize("x", [matrix(6), images(channels=6)], ids=["matrix", "images"])
def test_batch_norm_in_training_and_testing(x):
    layer = BatchNorm(6, momentum=0.25, eps=1e-3, dtype="float64")
    layer.params["gamma"].set_value(np.arange(1.0, 7))
    layer.params["beta"].set_value(np.arange(6.0))
    y, changes = layer.training(x)
    value = 3 * drawn(x) + 2
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    n = value.size // 6
    mean, var = value.mean(axes), value.var(axes)

    def normalised(mean, var):
        per_channel = (-1, *(1,) * (x.ndim - 2))
        mean, var, gamma, beta = (
            v.reshape(per_channel) for v in (mean, var, np.arange(1.0, 7), np.arange(6.0))
        )
        return (value - mean) / np.sqrt(var + 1e-3) * gamma + beta

    np.testing.assert_allclose(
        run(x, y, value, updates=changes), normalised(mean, var), rtol=1e-9, atol=1e-12
    )
    running_mean, running_var = 0.25 * mean, 0.75 + 0.25 * var * n / (n - 1)
    np.testing.assert_allclose(layer.state["mean"].get_value(), running_mean, rtol=1e-9)
    np.testing.assert_allclose(layer.state["var"].get_value(), running_var, rtol=1e-9)
    tested = run(x, layer(x), value)
    np.testing.assert_allclose(tested, normalised(running_mean, running_var), rtol=1e-9, atol=1e-12)


def test_batch_norm_hands_its_options_over(monkeypatch):
    asked = []
    monkeypatch.setattr(ops, "batch_norm", lambda *_, **options: asked.append(options) or ("y", []))
    BatchNorm(3).training(images("float32"))
    BatchNorm(3, momentum=0.2, eps=1e-3, all_ranks=True)(images("float32"))
    assert asked == [
        {"train": True, "momentum": 0.1, "eps": 1e-5, "all_ranks": False},
        {"train": False, "momentum": 0.2, "eps": 1e-3, "all_ranks": True},
    ]


def test_dropout_drops_in_training_only():
    x = matrix(500)
    layer = Dropout(0.2, seed=3)
    assert layer(x) is x
    y, [(rng, _)] = layer.training(x)
    assert rng is layer.state["rng"]
    kept = run(x, y, np.ones((40, 500)))
    assert set(np.unique(kept)) == {0, 1.25}
    assert (kept == 0).mean() == pytest.approx(0.2, abs=5 * np.sqrt(0.2 * 0.8 / kept.size))


def test_dropout_draws_anew_in_each_call_and_differs_by_seed():
    x = matrix(50)
    one, other = Dropout(0.5, seed=3), Dropout(0.5, seed=(3, 1))
    masks = []
    for layer in (one, other):
        y, changes = layer.training(x)
        f = pytensor.function([x], y, updates=changes, mode=PLAIN)
        masks += [f(np.ones((4, 50))) for _ in range(2)]
    assert all((one != other).any() for one, other in itertools.combinations(masks, 2))


def test_pooling_takes_its_options():
    x = images()
    pairs = [
        (MaxPool(2), ops.max_pool2d(x, 2)),
        (MaxPool(3, 2, padding=1), ops.max_pool2d(x, 3, stride=2, padding=1)),
        (AvgPool((2, 4)), ops.avg_pool2d(x, (2, 4))),
        (
            AvgPool(3, (2, 1), padding=1, count_padding=False),
            ops.avg_pool2d(x, 3, stride=(2, 1), padding=1, count_padding=False),
        ),
        (Upsample(2), x.repeat(2, 2).repeat(2, 3)),
        (
            Upsample(size=(9, 11), mode="bilinear", align_corners=True),
            ops.upsample2d(x, size=(9, 11), mode="bilinear", align_corners=True),
        ),
        (GlobalAvgPool(), x.mean(axis=(2, 3))),
        (Flatten(), x.reshape((-1, 192))),
        (ReLU(), pt.maximum(x, 0)),
    ]
    found = run(x, [graph for layer, expected in pairs for graph in (layer(x), expected)], drawn(x))
    for one, other in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)
    assert all(layer.training(x)[1] == [] for layer, _ in pairs)


# --- layers of layers ------------------------------------------------------------------------------


def test_names_are_paths():
    network = make_network()
    first, second = "stage.0.branch", "stage.1.branch"
    assert list(network.params) == [
        "stem.W",
        *("norm.gamma", "norm.beta"),
        *(f"{first}.conv1.W", f"{first}.norm1.gamma", f"{first}.norm1.beta"),
        *(f"{first}.conv2.W", f"{first}.norm2.gamma", f"{first}.norm2.beta"),
        *(f"{second}.conv1.W", f"{second}.norm1.gamma", f"{second}.norm1.beta"),
        *(f"{second}.conv2.W", f"{second}.norm2.gamma", f"{second}.norm2.beta"),
        *("stage.1.shortcut.conv.W", "stage.1.shortcut.norm.gamma", "stage.1.shortcut.norm.beta"),
        *("head.W", "head.b"),
    ]
    norms = ["norm", f"{first}.norm1", f"{first}.norm2", f"{second}.norm1", f"{second}.norm2"]
    norms.append("stage.1.shortcut.norm")
    assert list(network.state) == [
        *(f"{norm}.{key}" for norm in norms for key in ("mean", "var")),
        "drop.rng",
    ]
    for name, variable in {**network.params, **network.state}.items():
        assert variable.name == name
    assert repr(network.layers["head"]) == "Dense 'head'(16 -> 4)"


def test_sequential_is_composition():
    x = matrix(5)
    first = Dense(5, 4, rng=generator(), dtype="float64")
    last = Dense(4, 3, rng=generator(), dtype="float64")

    def tanh(x):
        return pt.tanh(x)

    network = Sequential(first, tanh, last=last)
    assert list(network.layers) == ["0", "1", "last"]
    assert repr(network.layers["1"]) == "Each '1'(tanh)"
    found, expected = run(x, [network(x), last(pt.tanh(first(x)))], drawn(x))
    np.testing.assert_array_equal(found, expected)


def test_residual_adds_branch_and_shortcut():
    x = matrix(4)
    value = drawn(x)
    branch = Dense(4, 4, rng=generator(), dtype="float64")
    shortcut = Dense(4, 4, init=initialisers.glorot_uniform, rng=generator(), dtype="float64")
    W, V = (layer.params["W"].get_value() for layer in (branch, shortcut))
    for residual, expected in [
        (Residual(branch), value + value @ W),
        (Residual(branch, shortcut), value @ V + value @ W),
        (Residual(branch, shortcut, activation=ops.relu), np.maximum(value @ V + value @ W, 0)),
    ]:
        for graph in (residual(x), residual.training(x)[0]):
            np.testing.assert_allclose(run(x, graph, value), expected, rtol=1e-12, atol=1e-14)


def test_a_branch_joins_later():
    x = images(channels=2)
    branch = Sequential(
        pool=MaxPool(2),
        norm=BatchNorm(2, dtype="float64"),
        up=ConvTranspose(2, 3, 2, stride=2, rng=generator(), dtype="float64"),
    )
    joined, value = Joined(branch), drawn(x)
    y, changes = joined.training(x)
    assert y.type.shape == (None, 5, 8, 8)
    found, expected = run(x, [y, branch.training(x)[0]], value)
    np.testing.assert_array_equal(found[:, :2], value)
    np.testing.assert_array_equal(found[:, 2:], expected)
    assert [one.name for one, _ in changes] == ["branch.norm.mean", "branch.norm.var"]
    shortcut = Joined(branch, Conv(2, 1, 1, rng=generator(), dtype="float64"))
    assert shortcut(x).type.shape == (None, 4, 8, 8)
    assert list(shortcut.params)[-2:] == ["shortcut.W", "shortcut.b"]


def test_a_summary_has_a_line_a_layer():
    x = images("float32", channels=1)
    rng = generator()
    shared = ReLU()
    model = Sequential(
        stem=Conv(1, 4, 3, padding=1, rng=rng),
        relu=shared,
        skip=Joined(Sequential(pool=MaxPool(2), up=ConvTranspose(4, 4, 2, stride=2, rng=rng))),
        again=shared,
        norm=BatchNorm(8),
        mean=GlobalAvgPool(),
        head=Dense(8, 2, rng=rng),
    )
    before = repr(model.layers)
    text = summary(model, x)
    assert repr(model.layers) == before
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines[2:-2]] == [
        *("stem", "relu", "skip.branch.pool", "skip.branch.up", "relu", "norm", "mean", "head"),
    ]
    assert "ConvTranspose(4 -> 4, 2 x 2, stride=2) (?, 4, 8, 8)" in " ".join(text.split())
    assert "(?, 8, 8, 8)" in text
    counts = {line[0]: line[-2:] for line in lines[2:-2]}
    assert counts["stem"] == ["40", "160"]
    assert counts["skip.branch.up"] == ["68", "272"]
    assert counts["norm"] == ["16", "64"]
    assert lines[-1] == ["142", "568"]
    assert model.n_parameters == 142
    assert summary(Dense(3, 2, rng=rng), matrix(3, "float32")).splitlines()[2].split()[-2:] == ["8", "32"]


def test_parameters_of_a_layer_in_two_places_are_counted_once():
    layer = Dense(4, 4, rng=generator())
    model = Sequential(first=layer, tanh=pt.tanh, second=layer)
    lines = [line.split() for line in summary(model, matrix(4, "float32")).splitlines()]
    assert [line[-2] for line in lines[2:5]] == ["20", "0", "0"]
    assert lines[-1] == ["20", "80"]


def test_a_network_in_two_places_has_its_lines_twice():
    block = Sequential(dense=Dense(4, 4, rng=generator()), relu=ReLU())
    model = Sequential(first=block, second=block)
    lines = [line.split() for line in summary(model, matrix(4, "float32")).splitlines()]
    assert [(line[0], line[-2]) for line in lines[2:6]] == [
        *(("first.dense", "20"), ("first.relu", "0"), ("first.dense", "0"), ("first.relu", "0")),
    ]
    assert list(model.layers.values()) == [block, block]
    assert repr(block.layers["dense"]) == "Dense 'first.dense'(4 -> 4)"


def test_a_block_begun_with_zero_gamma_is_its_shortcut():
    x = images(channels=8)
    block = make_block(8, 8, generator())
    value = drawn(x)
    np.testing.assert_allclose(run(x, block.training(x)[0], value), np.maximum(value, 0), atol=1e-14)


def test_a_layer_in_two_places_has_one_set_of_weights():
    x = matrix(4)
    layer = Dense(4, 4, rng=generator(), dtype="float64")
    network = Sequential(first=layer, tanh=pt.tanh, second=layer)
    assert network.params == {"first.W": layer.params["W"], "first.b": layer.params["b"]}
    assert layer.name == "first"
    W, value = layer.params["W"].get_value(), drawn(x)
    np.testing.assert_allclose(run(x, network(x), value), np.tanh(value @ W) @ W, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:RandomGeneratorVariable .* has already been used")  # PyTensor's own word
@pytest.mark.parametrize("layer", [BatchNorm(4), Dropout(0.5, seed=1)], ids=["norm", "dropout"])
def test_state_in_two_places_is_refused_in_training(layer):
    x = matrix(4, "float32")
    for network in (Sequential(layer, pt.tanh, layer), Residual(layer, Sequential(pt.tanh, layer))):
        network(x)
        with pytest.raises(ValueError, match=r"is updated twice: its layer stands in two places"):
            network.training(x)


@pytest.mark.slow
def test_every_parameter_has_a_gradient():
    """Of the graph for training; a branch that ends in gammas of zero has some only once these have moved."""
    x = images()
    network = make_network()
    for name, variable in network.params.items():
        if name.endswith("norm2.gamma"):
            variable.set_value(np.ones_like(variable.get_value()))
    logits, changes = network.training(x)
    assert [variable for variable, _ in changes] == list(network.state.values())
    params = list(network.params.values())
    gradients = run(x, pytensor.grad(pt.sqr(logits).mean(), params), drawn(x))
    for param, gradient in zip(params, gradients, strict=True):
        assert gradient.shape == param.get_value().shape
        assert np.isfinite(gradient).all()
        assert (gradient != 0).any(), param.name


def test_layers_of_ones_own():
    class Scale(Layer):
        """All values times one parameter."""

        def __init__(self, dtype):
            super().__init__(params={"factor": pytensor.shared(np.asarray(3.0, dtype))})

        def __call__(self, x):
            return x * self.params["factor"]

    x = matrix(2)
    network = Sequential(scale=Scale("float64"))
    assert network.params["scale.factor"].name == "scale.factor"
    assert repr(network.layers["scale"]) == "Scale 'scale'()"
    value = drawn(x)
    np.testing.assert_array_equal(run(x, network.training(x)[0], value), 3 * value)


# --- training on ranks -----------------------------------------------------------------------------


def make_step(network, x, y, rule=updates.sgd, **options):
    logits, changes = network.training(x)
    loss = ops.softmax_cross_entropy(logits, y).mean()
    return train.make_train_function(loss, network.params.values(), [x, y], rule, updates=changes, **options)


def test_running_statistics_are_averaged_over_ranks(module_ranks):
    """The mean is that of one process. The variance is the mean of those inside of the shards, without the
    part between them: so it is compared with its formula, not with one process."""
    x, y = images(), pt.lvector("y")
    norm = BatchNorm(3, momentum=1.0, dtype="float64")
    head = Dense(192, 4, rng=generator(), dtype="float64")
    network = Sequential(norm=norm, flat=Flatten(), head=head)
    step = make_step(network, x, y, learning_rate=0.1)
    value = drawn(x, 13)  # 7 and 6 rows
    step(value, np.arange(13) % 4)
    axes = (0, 2, 3)
    shards = np.array_split(value, module_ranks)
    unbiased = [shard.var(axes) * (shard.size / 3) / (shard.size / 3 - 1) for shard in shards]
    expected = np.average(unbiased, axis=0, weights=[len(shard) for shard in shards])
    for rank in range(module_ranks):
        np.testing.assert_allclose(synk.get_value(rank, norm.state["mean"]), value.mean(axes), rtol=1e-9)
        np.testing.assert_allclose(synk.get_value(rank, norm.state["var"]), expected, rtol=1e-9)


def test_steps_of_embeddings_and_joined_branches_equal_those_of_one_process(module_ranks):
    """Rows that look the same vectors up lie on several ranks."""
    words, y = pt.tensor("words", shape=(None, 3), dtype="int64"), pt.lvector("y")

    def make():
        rng, dtype = generator(), "float64"
        return Sequential(
            embed=Embedding(5, 4, rng=rng, dtype=dtype),
            skip=Joined(Dense(4, 2, rng=rng, dtype=dtype), axis=2),
            norm=LayerNorm(6, dtype=dtype),
            flat=Flatten(),
            head=Dense(18, 4, rng=rng, dtype=dtype),
        )

    alone, spread = make(), make()
    value, labels = np.random.default_rng(3).integers(0, 5, (7, 3)), np.arange(7) % 4
    loss = ops.softmax_cross_entropy(alone(words), y).mean()
    params = list(alone.params.values())
    descent = [(p, p - 0.1 * g) for p, g in zip(params, pytensor.grad(loss, params), strict=True)]
    step_alone = pytensor.function([words, y], loss, updates=descent, mode=PLAIN)
    step = make_step(spread, words, y, learning_rate=0.1)
    for n_rows in (7, 7, 1):
        one, other = step(value[:n_rows], labels[:n_rows]), step_alone(value[:n_rows], labels[:n_rows])
        np.testing.assert_allclose(one, other, rtol=1e-9)
    for mine, expected in zip(spread.params.values(), params, strict=True):
        np.testing.assert_allclose(mine.get_value(), expected.get_value(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_steps_without_batch_norm_equal_those_of_one_process(module_ranks):
    """Sums come in another order, and convolutions of fewer images may take other kernels: to 1e-9."""
    x, y = images(), pt.lvector("y")

    def make():
        rng = generator()
        return Sequential(
            conv=Conv(3, 4, 3, rng=rng, dtype="float64"),
            relu=ReLU(),
            pool=MaxPool(2),
            flat=Flatten(),
            head=Dense(36, 4, rng=rng, dtype="float64"),
        )

    alone, spread = make(), make()
    value, labels = drawn(x, 13), np.arange(13) % 4
    loss = ops.softmax_cross_entropy(alone(x), y).mean()
    params = list(alone.params.values())
    descent = [(p, p - 0.1 * g) for p, g in zip(params, pytensor.grad(loss, params), strict=True)]
    step_alone = pytensor.function([x, y], loss, updates=descent, mode=PLAIN)
    step = make_step(spread, x, y, learning_rate=0.1)
    for num_slices in (1, 2, 1):
        np.testing.assert_allclose(
            step(value, labels, num_slices=num_slices), step_alone(value, labels), rtol=1e-9
        )
    for mine, expected in zip(spread.params.values(), params, strict=True):
        np.testing.assert_allclose(mine.get_value(), expected.get_value(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_network_learns_by_heart(module_ranks):
    """With all that there is: residual blocks, dropout, running statistics, a schedule."""
    x, y = images("float32"), pt.lvector("y")
    network = make_network("float32", dropped=0.1)
    counter = schedules.counter()
    step = make_step(
        network,
        x,
        y,
        schedules.counting(updates.adam, counter),
        learning_rate=schedules.cosine(counter, 0.02, 60, warm_up=5),
    )
    value = drawn(x, 24)
    labels = np.random.default_rng(5).integers(0, 4, 24)
    losses = [float(step(value, labels)) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    right = synk.function([x, y], pt.eq(network(x).argmax(axis=1), y).astype("float32").mean())
    assert right(value, labels) == 1
    assert int(synk.get_value(1, counter)) == 60
    for variable in network.params.values():
        one, other = synk.gather(variable, nd_up=1)
        assert one.tobytes() == other.tobytes(), variable.name


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Sequential(stem=Conv(3, 8, 3, rng=generator()))(images("float32", 4)),
            ValueError,
            r"Conv 'stem'\(3 -> 8, 3 x 3\) takes 3 channels, but its input has 4: shape \(None, 4, 8, 8\)",
        ),
        (
            lambda: Sequential(a=Sequential(BatchNorm(5))).training(matrix(4, "float32")),
            ValueError,
            r"BatchNorm 'a.0'\(5\) takes 5 channels, but its input has 4",
        ),
        (
            lambda: Sequential(Dense(2, 3, rng=generator()), Dense(4, 1, rng=generator()))(
                matrix(2, "float32")
            ),
            ValueError,
            r"Dense '1'\(4 -> 1\) takes 4 units, but its input has 3",
        ),
        (
            lambda: Dense(192, 3, rng=generator())(images()),
            ValueError,
            r"Dense\(192 -> 3\) takes 192 units, but its input has 8: .*; put a Flatten\(\) before it",
        ),
        (
            lambda: Dense(4, 3, rng=generator())(matrix(4)),
            TypeError,
            r"Dense\(4 -> 3\) takes float32, but its input is float64; cast it, x.astype\('float32'\)",
        ),
        (
            lambda: MaxPool(2)(matrix(4)),
            ValueError,
            r"MaxPool\(size=2, .*\) takes \(images, channels, height",
        ),
        (lambda: BatchNorm(3)(pt.ftensor3()), ValueError, r"takes \(images, .*\) or \(rows, units\)"),
        (lambda: Dense(4, 3, rng=generator())(pt.fvector()), ValueError, r"takes \(rows, ..., units\)"),
        (lambda: LayerNorm(3)(matrix(4, "float32")), ValueError, r"LayerNorm\(3\) takes 3 units, .* has 4"),
        (lambda: Embedding(4, 3, rng=generator())(matrix(4)), TypeError, "takes integers, .* is float64"),
        (
            lambda: Joined(MaxPool(2))(images()),
            ValueError,
            r"the branch gives shape \(None, 3, 4, 4\) and the shortcut \(None, 3, 8, 8\), which differ",
        ),
        (lambda: Joined(ReLU(), axis=2)(matrix(4)), ValueError, "joins along axis 2 of shape"),
        (lambda: Conv(4, 6, (3, 3, 3), rng=generator()), ValueError, r"size=\(3, 3, 3\) is no pair; pass"),
        (lambda: summary(Dense, matrix(4)), TypeError, "Dense is a class, not a layer"),
        (
            lambda: summary(Flatten(), (None, 3)),
            TypeError,
            r"not a shape: pass .*tensor\(shape=\(None, 3\)\)",
        ),
        (lambda: GroupNorm(4, groups=3), ValueError, "groups=3 does not divide n=4 channels"),
        (
            lambda: GroupNorm(4, groups=2)(images("float32")),
            ValueError,
            r"GroupNorm\(4, .* takes 4 chan",
        ),
        (lambda: ConvTranspose(4, 6, 3, groups=4, rng=generator()), ValueError, "groups=4 does not divide"),
        (lambda: Dense(0, 3, rng=generator()), ValueError, "n_in=0 is less than 1; pass a number of units"),
        (lambda: Dense(3, 2.0, rng=generator()), TypeError, r"n_out=2.0 is not an integer"),
        (lambda: Dense(3, 2, rng=0), TypeError, "rng=0 is no random generator"),
        (
            lambda: Dense(3, 2, rng=generator(), dtype="float16"),
            TypeError,
            "dtype='float16' is not trained in",
        ),
        (
            lambda: Dense(3, 2, init=lambda *_: np.zeros(3), rng=generator()),
            ValueError,
            r"returned shape \(3,\) for \(3, 2\)",
        ),
        (
            lambda: Conv(4, 6, 3, groups=3, rng=generator()),
            ValueError,
            "groups=3 does not divide n_in=4 and n_out=6",
        ),
        (lambda: Conv(4, 6, (3, 0), rng=generator()), ValueError, "size=0 is less than 1"),
        (lambda: Dropout(1.0, seed=1), ValueError, r"rate=1.0 is outside \[0, 1\)"),
        (lambda: Sequential(), ValueError, "a Sequential of no layers"),
        (lambda: Sequential(**{"a.b": ReLU()}), ValueError, "'a.b' does not name a layer"),
        (lambda: Sequential(ReLU), TypeError, r"ReLU is a class, not a layer; call it first: ReLU\(...\)"),
        (lambda: Sequential(3), TypeError, "3 is no layer"),
        (
            lambda: Sequential(block=Residual(Dense(4, 3, rng=generator())))(matrix(4, "float32")),
            ValueError,
            r"Residual 'block'\(branch\): the branch gives shape \(None, 3\) and the shortcut \(None, 4\)",
        ),
        (lambda: Residual(lambda x: x.sum(), ReLU())(matrix(4)), ValueError, r"the branch gives shape \(\)"),
        (lambda: Layer()(matrix(4)), NotImplementedError, "Layer does not say what it does; define __call__"),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
