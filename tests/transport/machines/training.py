"""A training by all that the public API has: what came out is written to a file, and the same everywhere.

python training.py ROWS.npy OUT.npz '{"n_parallel": 3}'

``ROWS.npy`` has rows of five numbers, the last of which is to be learned. See test_same_numbers.py.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk
from synk.extensions import train, updates

found = {}


class Refuse(Op):
    """The input; raises where it holds a 7."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        if 7.0 in inputs[0]:
            raise LookupError("a seven")
        outputs[0][0] = inputs[0].copy()


class Counter:
    """What each rank has of its own."""

    def __init__(self, rank, start):
        self.count = 100 * rank + start

    def __call__(self, step):
        self.count += step
        return self.count


def note(**values):
    found.update({name: np.asarray(value) for name, value in values.items()})


def functions(rows):
    """Call one function in all the ways that there are."""
    x, row = pt.matrix("x"), pt.vector("row")
    outputs = [
        x.mean(axis=0),
        ((x * row).sum(axis=0), "sum"),
        (x.max(), "max"),
        (x.sum(axis=1), "gather"),
        x.std(axis=0),
    ]
    f = synk.function([x], outputs, bcast_inputs=[row], name="f")
    one = np.arange(1.0, 6.0)
    for name, options in {
        "whole": {},
        "batch": {"batch": 17},
        "listed": {"batch": [5, 1, -1, 5, 30, 2]},
        "stretch": {"batch": slice(3, 40)},
        "subset": {"output_subset": [3, 0]},
    }.items():
        for number, value in enumerate(f(rows, one, **options)):
            note(**{f"{name}_{number}": value})
    many = synk.function([x], [x.mean(axis=0), (x.max(), "max")], name="many")
    for number, value in enumerate(many(rows, num_slices=3)):
        note(**{f"sliced_{number}": value})
    g = synk.function([], [pytensor.shared(rows, name="held").sum(axis=0)], name="g")
    note(implicit=g())
    return f


def data_and_files(f, path):
    """Write into Data in all the ways that there are, and read a file in place."""
    one, values = np.ones(5), np.arange(60.0).reshape(12, 5)
    data = synk.data(values)
    view = data.data
    note(fresh=f(data, one)[0])
    data[3] = -1.0
    note(row=f(data, one)[1])
    view[5, 2] = 1e6  # nobody is told
    note(kept=f(data, one)[2])
    data.set_value(values[:7], oversize=2)
    note(shorter=f(data, one)[3])
    data.set_length(10)
    data[7:10] = 0.5
    note(longer=f(data, one)[3])
    data[:] = 2.0
    note(all_of_it=f(data, one, batch=4)[1])
    note(from_file=f(synk.data(path), one)[4], in_file=f(synk.data(path), one, batch=[3, 40, 7])[3])
    other = Path(path).with_name("other.npy")
    np.save(other, values)
    of_other = synk.data(other)
    other.unlink()
    np.save(other, values[:7])
    note(replaced=f(of_other, one)[4])


def rows_of_large_data():
    """Read rows of arrays that are many blocks long: each machine has those that its ranks read."""
    x, weight = pt.matrix("x"), pt.vector("weight")
    outputs = [((x * weight[:, None]).sum(axis=0), "sum"), (x.max(), "max")]
    f = synk.function([x, weight], outputs, name="weighted")
    values = np.random.default_rng(7).normal(size=(60_000, 5))
    data, weights = synk.data(values), synk.data(np.arange(60_000.0) % 7)
    note(stretch_first=f(data, weights, batch=slice(20_000, 50_000))[0])
    data[31_000] = 1e3
    note(written=f(data, weights)[1], as_arrays=f(values, np.ones(60_000))[0])
    note(few=f(data, weights, batch=slice(59_000, 59_002))[0], one=f(data, weights, batch=1)[0])
    note(listed_rows=f(data, weights, batch=[59_999, 5, 31_000, 7])[0])
    note(in_slices=f(data, weights, num_slices=5)[0])
    paired = synk.data(np.arange(40_000.0), minibatch=True)
    note(paired=f(data, paired, batch=slice(10_000, 50_000))[0])


def verbs(n_ranks):
    """Run every collective."""
    v, table = pytensor.shared(np.zeros(4), name="v"), pytensor.shared(np.zeros((1, 4)), name="table")
    rows = np.arange(4.0 * (2 * n_ranks + 1)).reshape(-1, 4)
    synk.broadcast(v, np.arange(4.0))
    for rank in range(n_ranks):
        synk.set_value(rank, v, np.arange(4.0) + rank)
    note(set=synk.gather(v), reduced=synk.reduce(v, "max", in_place=False))
    synk.all_reduce(v, "sum")
    note(summed=synk.gather(v), one=synk.get_value(n_ranks - 1, v))
    synk.scatter(table, rows)
    note(lengths=synk.get_lengths(table), shapes=str(synk.get_shapes(table)))
    note(joined=synk.gather(table, nd_up=0))
    synk.check_finite(table)
    square = pytensor.shared(np.zeros((n_ranks, 3)), name="square")
    for rank in range(n_ranks):
        synk.set_value(rank, square, np.arange(3.0 * n_ranks).reshape(n_ranks, 3) * (rank + 1))
    synk.all_to_all(square)
    note(turned=synk.gather(square))
    synk.reduce_scatter(square, "sum")
    note(parts=synk.gather(square))
    synk.all_gather(v)
    note(everywhere=synk.gather(v))
    large = pytensor.shared(np.zeros(3), name="large")
    synk.broadcast(large, np.random.default_rng(3).normal(size=300_000))
    synk.all_reduce(large, "avg")
    note(large=synk.get_value(n_ranks - 1, large))


def draws():
    """Draw on every rank from a stream of its own."""
    rng = pt.random.shared_rng(seed=5, name="rng") if hasattr(pt.random, "shared_rng") else None
    x = pt.matrix("x")
    if rng is not None:
        next_rng, noise = rng.normal(size=x.shape)
        f = synk.function([x], [((x + noise).sum(axis=0), "sum")], updates=[(rng, next_rng)], name="noisy")
        note(noise_1=f(np.zeros((9, 5))), noise_2=f(np.zeros((9, 5))))


def objects():
    """Keep an object on every rank."""
    counter = synk.on_ranks(Counter, 10)
    counter(1)
    note(counts=counter(2))


def failing():
    """A rank that raises is told of, with its traceback, and the run goes on."""
    x = pt.vector("x")
    f = synk.function([x], (Refuse()(x).sum(), "sum"), name="refusing")
    values = np.arange(12.0)
    try:
        f(values)
    except LookupError as error:  # of any rank
        note(report=str(error))
    values[7] = 0
    note(afterwards=f(values))


def learn(rows):
    """Train, commit, train on, go back, train again."""
    x, y = pt.matrix("x"), pt.vector("y")
    weights = pytensor.shared(np.zeros(4), name="weights")
    loss = ((x @ weights - y) ** 2).mean()
    step = train.make_train_function(loss, [weights], [x, y], updates.momentum, learning_rate=0.05)
    total = pytensor.shared(np.zeros(4), name="total")
    adding = synk.function([x], updates=[(total, total + x.sum(axis=0))], name="adding")
    both = synk.sequence(adding, (synk.all_reduce, total, "avg"), name="both")
    inputs, targets = synk.data(rows[:, :4].copy()), synk.data(rows[:, 4].copy())

    def epoch():
        return [step(inputs, targets, batch=slice(at, at + 16)) for at in range(0, len(rows), 16)]

    losses = epoch()
    both(rows[:, :4].copy())
    synk.commit({"epoch": 1})
    losses += epoch()
    after = weights.get_value()
    assert synk.restart() == {"epoch": 1}
    again = epoch()
    np.testing.assert_array_equal(again, losses[len(losses) // 2 :])
    np.testing.assert_array_equal(weights.get_value(), after)
    note(losses=losses, weights=after, total=synk.get_value(synk.n_ranks() - 1, total))


def main(path, out, options):
    rows = np.load(path)
    n_ranks = synk.fork(**json.loads(options))
    f = functions(rows)
    data_and_files(f, path)
    rows_of_large_data()
    verbs(n_ranks)
    draws()
    objects()
    failing()
    learn(rows)
    synk.topology()
    note(pids=len(synk.pids()))
    synk.close()
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
