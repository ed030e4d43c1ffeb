"""Layers and collectives on simulated ranks give one process's numbers: values, gradients, no gather."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.exact.simulated import OneProcess, Simulated
from support.slow import slow
from synk import ops
from synk.exact.define import define

N_RANKS = 3
RANKS = (1, 2, 3, 5)
ROWS = (7, 2)
FEW = (1, 0)

images, x, labels = pt.tensor4("images"), pt.matrix("x"), pt.lvector("labels")
filters = pytensor.shared(np.random.default_rng(1).normal(size=(3, 3, 2, 2)), name="filters")
gamma, beta, mean, variance = (
    pytensor.shared(np.linspace(low, 2, 3), name=name)
    for name, low in (("gamma", 1), ("beta", -1), ("mean", 0), ("variance", 0.5))
)
plane = pytensor.shared(np.linspace(0.5, 1.5, 9).reshape(3, 3), name="plane")
DRAWS = {
    images: lambda rng, n: rng.normal(size=(n, 3, 5, 5)),
    x: lambda rng, n: rng.normal(size=(n, 3)),
    labels: lambda rng, n: rng.integers(0, 3, n),
}


def defined(results):
    ancestors = set(pytensor.graph.traversal.ancestors(results))
    inputs = [variable for variable in DRAWS if variable in ancestors]
    return define("layer", inputs, list(results))


def compared(results, rows=ROWS):
    """Compare with one process; return the modes, and how many collectives there were, and gathers."""
    definition = defined(results)
    alone, ranks = OneProcess(definition), Simulated(definition)
    counts = set()
    for n in rows:
        rng = np.random.default_rng(n)
        values = [DRAWS[variable](rng, n) for variable in definition.inputs]
        expected = alone(values)
        for n_ranks in RANKS:
            for one, other in zip(ranks(values, n_ranks), expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
            counts.add((ranks.together.count, ranks.together.gathered))
    (count,) = counts
    return ranks.exact.output_modes, *count


def with_gradients(value, *parameters):
    """Return a value and the gradients of a sum over rows of its squares."""
    wanted = [variable for variable in (images, x) if variable in pytensor.graph.traversal.ancestors([value])]
    return [value, *pytensor.grad((value**2).sum(), [*wanted, *parameters])]


@pytest.mark.parametrize(
    ("layer", "parameters"),
    [
        (lambda: ops.conv2d(images, filters), [filters]),
        (lambda: ops.conv_transpose2d(images, filters, stride=2, output_padding=1), [filters]),
        (lambda: ops.max_pool2d(images, 2), []),
        (lambda: ops.upsample2d(images, 2), []),
        (lambda: ops.upsample2d(images, size=(7, 4), mode="bilinear"), []),
        (lambda: ops.crop(images, ((1, 0), (0, 2))), []),
        (lambda: ops.pad(images, 1, value=2.0), []),
        (lambda: ops.crop(images, size=ops.max_pool2d(images, 2)), []),
        (lambda: ops.conv1d(images[:, :, 0], filters[:, :, 0]), [filters]),
        (lambda: ops.avg_pool2d(images, 2), []),
        (lambda: ops.global_avg_pool2d(images), []),
        (lambda: ops.relu(x), []),
        (lambda: ops.group_norm(images, gamma, beta, 3), [gamma, beta]),
        (lambda: ops.group_norm(x, gamma, beta, 1), [gamma, beta]),
        (lambda: ops.layer_norm(x, gamma, beta), [gamma, beta]),
        (lambda: ops.layer_norm(images[:, :, :3, :3], plane, plane), [plane]),
        (lambda: ops.softmax_cross_entropy(x, labels), []),
        (lambda: ops.batch_norm(images, gamma, beta, mean, variance, train=False)[0], [gamma, beta]),
        (lambda: ops.batch_norm(x, gamma, beta, mean, variance, train=False)[0], [gamma, beta]),
    ],
)
def test_a_layer_goes_row_by_row_and_its_gradients_are_sums(layer, parameters):
    modes, *met = compared(with_gradients(layer(), *parameters), ROWS + FEW)
    assert modes == ("gather", "gather", *["sum"] * len(parameters))
    assert met == [0, 0]


@pytest.mark.parametrize(
    "layer",
    [
        # A penalty on gradients for the images goes through all three Ops of a convolution.
        lambda y: ops.conv_transpose2d(y, filters),
        lambda y: ops.max_pool2d(ops.avg_pool2d(y, 2, stride=1), 2),
        lambda y: ops.pad(ops.upsample2d(y, 2), 1),
        lambda y: ops.group_norm(y, gamma, beta, 3, eps=0.1),
        lambda y: ops.layer_norm(y[:, :, :3, :3], plane, plane, eps=0.1),
    ],
)
def test_second_derivatives_are_those_of_one_process(layer):
    y = layer(ops.conv2d(images, filters))
    (gradient,) = pytensor.grad((y**3).sum(), [images])
    penalty = (gradient**2).sum()
    modes, *_ = compared([penalty, *pytensor.grad(penalty, [images, filters])], ROWS + FEW)
    assert modes == ("sum", "gather", "sum")


@pytest.mark.parametrize("batch", [x, images])
def test_batch_norm_over_all_ranks_is_that_of_one_process(batch):
    y, updates = ops.batch_norm(batch, gamma, beta, mean, variance, train=True, all_ranks=True)
    _, collectives, gathers = compared([*with_gradients(y, gamma, beta), *(new for _, new in updates)])
    assert (collectives, gathers) == (4, 0)


def test_batch_norm_over_each_ranks_rows_is_averaged_where_one_value_is_needed():
    y, updates = ops.batch_norm(x, gamma, beta, mean, variance, train=True)
    definition = define("norm", [x], [y, *pytensor.grad((y**3).sum(), [gamma])], updates=updates)
    ranks = Simulated(definition)
    values = np.random.default_rng(0).normal(size=(6, 3))
    found = ranks([values], 2)
    parts = [OneProcess(definition)([part]) for part in np.split(values, 2)]
    assert ranks.exact.output_modes == ("gather", "sum")
    np.testing.assert_allclose(found[0], np.concatenate([part[0] for part in parts]))
    np.testing.assert_allclose(found[1], parts[0][1] + parts[1][1])
    for k in (2, 3):
        np.testing.assert_allclose(found[k], (parts[0][k] + parts[1][k]) / 2)


def test_dropout_draws_for_the_rows_of_each_rank():
    rng = pt.random.shared_rng(seed=0)
    y, update = ops.dropout(x, 0.5, rng)
    exact = Simulated(define("dropout", [x], [y, y.mean()], updates=[update])).exact
    assert exact.output_modes == ("gather", "sum")
    assert not exact.needs_all_rows
    assert not exact.parts


def decoder(y):
    """Layers that make images smaller and larger again, joined with what they were."""
    h = ops.relu(ops.group_norm(ops.conv2d(y, filters, padding=((1, 0), (1, 0))), gamma, beta, 3))
    low = ops.avg_pool2d(ops.max_pool2d(h, 2), 2, stride=1, padding=1)
    larger = ops.conv_transpose2d(low, filters, stride=2, padding=1, output_padding=1)
    smooth = ops.upsample2d(low, (2, 1.7), mode="bilinear")
    return pt.join(1, ops.pad(ops.crop(h, 1), 1), ops.crop(larger, size=h), ops.crop(smooth, size=h))


@pytest.mark.parametrize(
    ("n_rows", "order"),
    [(7, 1), slow(7, 2), slow(1, 2), slow(0, 2)],
    ids=["uneven", "penalty", "one", "none"],
)
@pytest.mark.usefixtures("module_ranks")
def test_ranks_with_few_rows_or_none_have_the_numbers_of_one_process(n_rows, order):
    """A first call that is checked computes on one rank, too, and raises an error unless they agree."""
    y = decoder(images)
    loss = (y * pt.tanh(y)).sum()
    wanted = [loss, y, *pytensor.grad(loss, [filters, gamma])]
    if order == 2:
        wanted += pytensor.grad((pytensor.grad(loss, images) ** 2).sum(), [filters])
    function = synk.function([images], wanted, check="first")
    found = function(DRAWS[images](np.random.default_rng(3), n_rows))
    assert found[1].shape == (n_rows, 9, 5, 5)
    assert list(function.output_modes) == ["sum", "gather", *["sum"] * (order + 1)]


# --- collectives that the user wrote -----------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        lambda: ops.all_reduce(x.sum(axis=0)),
        lambda: ops.all_sum(x.sum()),
        lambda: ops.all_reduce(x.max(axis=0), "max"),
        lambda: ops.all_reduce(x.sum(axis=0)) / ops.all_sum(x.shape[0]),
        lambda: ops.all_reduce(x.mean(axis=0), "avg"),
        lambda: pt.exp(ops.all_reduce(x.sum(axis=0) / 10)),
        lambda: ops.all_gather(x),
        lambda: ops.all_gather(x.T, axis=1).sum(axis=1),
        lambda: pt.sort(ops.all_gather(x), axis=0),
        lambda: ops.reduce_scatter(x),
        lambda: ops.broadcast(x.sum(axis=0)),
    ],
)
def test_a_collective_is_what_it_is_in_one_process(written):
    value = written()
    compared([value])
    compared(pytensor.grad((value**2).sum(), [x], disconnected_inputs="ignore"))


def test_a_sum_over_ranks_of_what_all_of_them_have_counts_once():
    repeated, needed = ops.all_reduce((gamma**2).sum()), ops.all_reduce(x.sum())
    assert compared([repeated + needed])[1:] == (1, 0)


def test_a_collective_inside_of_a_loop_is_what_it_is_in_one_process():
    steps = pytensor.scan(
        lambda b: b - 0.1 * ops.all_sum(x.T @ (x @ b)), outputs_info=[gamma], n_steps=2, return_updates=False
    )
    assert compared([steps])[1:] == (2, 0)
