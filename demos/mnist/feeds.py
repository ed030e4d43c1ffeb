"""Two ways to feed the ranks: from shared memory of the host, or from what was scattered to them.

Each takes a network, the digits and an update rule, and returns arguments of `fit`: the step, data for it,
and how to validate. Both ways train on the same rows, and without dropout come to the same numbers, for any
number of ranks.
"""

from itertools import pairwise

import numpy as np
import pytensor

import synk
from synk.extensions.train import make_train_function


def from_host(network, training, testing, rule, **options):
    """Keep the data in shared memory: each call says which rows, and each rank reads its part of them."""
    x, y = network.x, network.y
    step = make_train_function(
        network.train_loss, network.params.values(), [x, y], rule, updates=network.updates, **options
    )
    evaluate = synk.function([x, y], [network.loss, network.accuracy])
    return {"step": step, "data": tuple(training), "validation": (evaluate, tuple(testing))}


def from_ranks(network, training, testing, rule, **options):
    """Scatter the data once: each call says which of its own rows each rank reads."""
    train_x, train_y = shared_like(training)
    test_x, test_y = shared_like(testing)
    step = make_train_function(
        network.train_loss,
        network.params.values(),
        [],
        rule,
        updates=network.updates,
        givens={network.x: train_x, network.y: train_y},
        sliceable_shareds=[train_x, train_y],
        **options,
    )
    evaluate = synk.function(
        [],
        [network.loss, network.accuracy],
        givens={network.x: test_x, network.y: test_y},
        sliceable_shareds=[test_x, test_y],
    )
    synk.scatter([train_x, train_y, test_x, test_y], [*training, *testing])
    lengths = synk.get_lengths(train_y)

    def data(rows):
        return {"batch_s": rows_of_ranks(rows, lengths)}

    return {"step": step, "data": data, "n_rows": len(training.labels), "validation": (evaluate, ())}


def shared_like(digits):
    """Make shared variables for digits, without rows: these come with `synk.scatter`."""
    return [pytensor.shared(values[:0]) for values in digits]


def rows_of_ranks(rows, lengths):
    """Translate row numbers of the whole data set to each rank's own.

    Parameters
    ----------
    rows : int array
    lengths : sequence of int
        Rows on each rank.

    Returns
    -------
    list of int array
        For each rank, where in its shard those of the rows lie that it has; in all, each row once.
    """
    edges = np.cumsum([0, *lengths])
    return [rows[(start <= rows) & (rows < stop)] - start for start, stop in pairwise(edges)]
