"""Calls in any order, beside NumPy: none sees what an earlier one left in buffers, lengths or storage.

    steps (drawn) -> taken by the ranks, and by arrays of this process -> results and values compared

``RANDOM_CALLS=2000`` draws as many lists of steps instead of the few that every run repeats.
"""

import os

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import synk
from support.processes.of_rank import runs_of

N_EXAMPLES = int(os.environ.get("RANDOM_CALLS", 0))
REDUCED = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max}

module_ranks = runs_of(3, later=[1, 2])


def values(length, seed):
    """Return small halves, which sums of a few keep exactly."""
    return np.random.default_rng(seed).integers(-4, 5, length) * 0.5


class World:
    """A Data and a shared variable, and the arrays that they are to hold; a method for each kind of step."""

    def __init__(self, n_ranks):
        self.n_ranks = n_ranks
        self.rows = values(4, 1)
        self.data = synk.data(self.rows, name="data")
        self.of_ranks = [values(3, 2)] * n_ranks
        self.v = pytensor.shared(self.of_ranks[0].copy(), name="v")
        x = pt.vector("x")
        self.read = synk.function([x], [(x, "gather"), (x.sum(), "sum")])
        self.read_shares = synk.function([], (self.v.sum(), "sum"), sliceable_shareds=[self.v])
        self.halve = synk.function([], updates=[(self.v, self.v * 0.5 + 1)])

    # --- Data, and functions of rows ---------------------------------------------------------------------

    def fill(self, how, length, seed):
        """Give the Data other values, or another length."""
        new = values(length, seed)
        if how == "set_value":
            self.data.set_value(new, oversize=1.5)
            self.rows = new
        elif how == "view":
            np.asarray(self.data)[...] = self.rows = values(len(self.rows), seed)
        elif how == "free":
            self.data.free_memory()
            self.rows = new[:0]
        else:
            kept = self.rows[:length]
            self.data.set_length(length)
            self.data[len(kept) :] = new[len(kept) :]
            self.rows = np.concatenate([kept, new[len(kept) :]])

    def call(self, source, batch, num_slices, seed):
        """Read rows of the Data, or of an array as long."""
        rows = self.rows if source == "data" else values(len(self.rows), seed)
        if isinstance(batch, list):  # of rows, as many as there are if there are any
            batch = np.array(batch[: len(rows)], int) % max(len(rows), 1)
        picked = rows if batch is None else rows[batch]
        given = self.data if source == "data" else rows
        found, total = self.read(given, batch=batch, num_slices=num_slices)
        np.testing.assert_array_equal(found, picked)
        assert total == picked.sum()

    def call_shares(self, batch_s, num_slices):
        """Read some rows of every rank's own values."""
        expected = sum(one[batch_s or slice(None)].sum() for one in self.of_ranks)
        assert self.read_shares(batch_s=batch_s, num_slices=num_slices) == pytest.approx(expected, abs=1e-9)

    def update(self):
        self.halve()
        self.of_ranks = [one * 0.5 + 1 for one in self.of_ranks]

    # --- collectives -------------------------------------------------------------------------------------

    def collect(self, verb, op, rank, length, seed, inside):
        """Call a collective by itself, or as an item of a sequence with functions that read what it made."""
        new, rank = values(length, seed), rank % self.n_ranks
        uneven = len({len(one) for one in self.of_ranks}) > 1
        if verb == "all_gather" and sum(map(len, self.of_ranks)) > 50:
            verb = "scatter"  # or it would grow for ever
        if uneven and verb in ("all_reduce", "reduce", "reduce_scatter"):
            with pytest.raises(synk.CollectiveMismatch):
                getattr(synk, verb)(self.v, op)
            return
        item = {
            **dict.fromkeys(("all_reduce", "reduce", "reduce_scatter"), (self.v, op)),
            **dict.fromkeys(("all_gather", "all_to_all", "broadcast"), (self.v,)),
            "broadcast values": (self.v, new),
            "broadcast data": (self.v, self.data),
            "scatter": (self.v, new),
            "set_value": (rank, self.v, new),
        }[verb]
        self.of_ranks = self.after(verb, op, rank, new)
        function = getattr(synk, verb.split()[0])
        if not inside:
            function(*item)
            return
        total, gathered = synk.sequence((function, *item), self.read_shares, (synk.gather, self.v, 0))()
        assert total == pytest.approx(sum(one.sum() for one in self.of_ranks), abs=1e-9)
        np.testing.assert_allclose(gathered, np.concatenate(self.of_ranks), atol=1e-12)

    def after(self, verb, op, rank, new):
        """Return all ranks' values after a collective."""
        old, n = self.of_ranks, self.n_ranks
        if verb == "set_value":
            return [new if other == rank else one for other, one in enumerate(old)]
        if verb == "scatter":
            return np.array_split(new, n)
        if verb == "all_to_all":
            parts = [np.array_split(one, n) for one in old]
            return [np.concatenate([of_rank[other] for of_rank in parts]) for other in range(n)]
        if verb in ("all_reduce", "reduce", "reduce_scatter"):
            made = REDUCED[op](old, axis=0)
            return {
                "all_reduce": [made] * n,
                "reduce": [made, *old[1:]],
                "reduce_scatter": np.array_split(made, n),
            }[verb]
        whole = {"broadcast values": new, "broadcast data": self.rows.copy(), "broadcast": old[0]}
        return [whole[verb] if verb in whole else np.concatenate(old)] * n

    def look(self):
        """Compare all that is held."""
        assert synk.get_lengths(self.v) == [len(one) for one in self.of_ranks]
        np.testing.assert_allclose(synk.gather(self.v, nd_up=0), np.concatenate(self.of_ranks), atol=1e-12)
        np.testing.assert_array_equal(self.data, self.rows)


rows, seeds, slices = st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)
lengths = st.integers(0, 8) | st.integers(0, 30)
stretches = st.none() | st.builds(slice, rows, rows)
batches = stretches | st.lists(rows, min_size=3, max_size=3)
verbs = st.sampled_from(
    [
        *("all_reduce", "reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"),
        *("broadcast values", "broadcast data", "scatter", "set_value"),
    ]
)
operations = st.sampled_from(list(REDUCED))


def step(kind, *arguments):
    return st.tuples(st.just(kind), *arguments)


steps = st.one_of(
    step(World.fill, st.sampled_from(["set_value", "view", "free", "length"]), lengths, seeds),
    step(World.call, st.sampled_from(["data", "array"]), batches, slices, seeds),
    step(World.call, st.just("data"), batches, st.just(1), seeds),
    step(World.call_shares, stretches, slices),
    *[step(World.collect, verbs, operations, rows, lengths, seeds, st.booleans())] * 2,
    step(World.update) | step(World.look),
)


def known_lengths(verb, inside):
    """Return steps by which the lengths of all ranks are known, and then change."""
    return [
        (World.collect, "broadcast values", "sum", 0, 8, 1, False),
        (World.call_shares, None, 1),
        (World.collect, verb, "sum", 1, 20, 2, inside),
        (World.call_shares, None, 1),
    ]


def any_order(n_examples):
    """Have a test take so many lists of steps, the same ones each time, and those that once went wrong."""

    def decorate(test):
        for once_wrong in (
            known_lengths("all_to_all", inside=True),
            known_lengths("set_value", inside=False),
            known_lengths("all_gather", inside=True),
        ):
            test = example(once_wrong)(test)
        test = given(taken=st.lists(steps, min_size=8, max_size=30))(test)
        return settings(
            max_examples=n_examples,
            derandomize=not N_EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(test)

    return decorate


@any_order(5)
def test_calls_in_any_order_give_the_numbers_of_numpy(module_ranks, taken):
    take(module_ranks, taken)


@pytest.mark.slow
@any_order(N_EXAMPLES or 16)
def test_calls_in_many_orders_give_the_numbers_of_numpy(module_ranks, taken):
    take(module_ranks, taken)


def take(n_ranks, taken):
    world = World(n_ranks)
    for do, *arguments in taken:
        do(world, *arguments)
    world.look()
