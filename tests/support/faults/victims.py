"""The run under test: functions, collectives, sequences, Data and training, each held to a model in NumPy.

    World.fork -> build -> deed, deed, ... -> (a fault) -> heal, or check_restored, or fork again

A deed calls first and changes the model afterwards, so a call that failed leaves the model as it was.
"""

import numpy as np
import pytensor
import pytensor.tensor as pt
from acts import COMPILING, Spot

import synk
from synk.extensions import train, updates

COLUMNS = 4
RATE = 0.05


class WrongNumber(AssertionError):
    """The run returned something else than the model."""


def check(name, found, expected, exact=False):
    """Raise WrongNumber unless arrays agree: to rounding, or in every bit."""
    found, expected = np.asarray(found), np.asarray(expected)
    same = found.shape == expected.shape and (
        np.array_equal(found, expected) if exact else np.allclose(found, expected, rtol=1e-9, atol=1e-9)
    )
    if not same:
        raise WrongNumber(f"{name}: {found!r} instead of {expected!r}")


class World:
    """A run, and a model of the values that it should hold; ``rng`` chooses all actions and numbers."""

    def __init__(self, rng):
        self.rng = rng
        self.n_ranks = 0
        self.values = {}  # by name, then by rank: what the shared variables hold
        self.committed = None

    def fork(self, n_ranks):
        """Start a run."""
        synk.fork(n_ranks, device="cpu")
        self.n_ranks = n_ranks

    def build(self):
        """Make everything anew that lives as long as a run."""
        self.committed = None
        x, row = pt.matrix("x"), pt.vector("row")
        self.reduced = synk.function(
            [x],
            [
                Spot()(x).mean(axis=0),
                ((x + row).sum(axis=0), "sum"),
                (x.max(), "max"),
                (x.sum(axis=1), "gather"),
            ],
            bcast_inputs=[row],
            name="reduced",
        )
        zeros = np.zeros(COLUMNS)
        self.variables = {name: pytensor.shared(zeros, name=name) for name in ("v", "total", "weights")}
        self.variables["table"] = pytensor.shared(np.zeros((self.n_ranks, COLUMNS)), name="table")
        self.large = pytensor.shared(np.zeros(3), name="large")
        v, total, weights = (self.variables[name] for name in ("v", "total", "weights"))
        summed = total + Spot()(x).sum(axis=0)  # by each rank, of its own rows
        self.summing = synk.function([x], updates=[(total, summed, "avg")], name="summing")
        y = pt.vector("y")
        loss = ((Spot()(x) @ weights - y) ** 2).mean()
        made = updates.momentum(loss, [weights], learning_rate=RATE)
        for variable, *_ in made.param_updates:
            if variable is not weights:
                self.variables["velocity"] = variable
        self.step = train.make_train_function(loss, [weights], [x, y], lambda loss, params: made)
        self.several = synk.sequence(self.summing, (synk.all_reduce, [total, v], "avg"), self.reduced)
        self.values = {
            name: [variable.get_value() for _ in range(self.n_ranks)]
            for name, variable in self.variables.items()
        }
        self.rows = self.rng.normal(size=(20, COLUMNS))
        self.renew_data()
        synk.broadcast(list(self.variables.values()))  # all travel, before anything is committed

    # --- deeds -------------------------------------------------------------------------------------

    def deed(self, *names):
        """Do one of the deeds named, or any; return its name."""
        name = str(self.rng.choice(names or tuple(DEEDS)))
        DEEDS[name](self)
        return name

    def _some_rows(self, least=1):
        return self.rng.normal(size=(int(self.rng.integers(least, 40)), COLUMNS))

    def _selection(self, n_rows):
        first, count = int(self.rng.integers(n_rows)), int(self.rng.integers(1, n_rows + 1))
        picked = self.rng.integers(-n_rows, n_rows, size=count)
        batch = [None, count, slice(first, first + count), picked, picked.tolist()][self.rng.integers(5)]
        return batch, slice(batch) if isinstance(batch, int) else slice(None) if batch is None else batch

    def reduce_rows(self, values=None, model=None):
        model = self._some_rows() if values is None else model
        row = self.rng.normal(size=COLUMNS)
        batch, rows = self._selection(len(model))
        results = self.reduced(
            model if values is None else values, row, batch=batch, num_slices=int(self.rng.integers(1, 4))
        )
        self._check_reduced(results, model[rows], row)

    def _check_reduced(self, results, rows, row):
        mean, total, largest, sums = results
        check("mean", mean, rows.mean(axis=0))
        check("sum", total, (rows + row).sum(axis=0))
        check("max", largest, rows.max())
        check("gather", sums, rows.sum(axis=1))

    def change_data(self):
        new = self._some_rows()
        how = self.rng.integers(4)
        if how == 0:
            at = int(self.rng.integers(len(self.rows)))
            self.data[at] = new[0]
            self.rows[at] = new[0]
        elif how == 1:
            self.data.set_value(new, oversize=1.5)
            self.rows = new
        elif how == 2:
            length = int(self.rng.integers(1, len(self.rows) + 1))
            self.data.set_length(length)
            self.rows = self.rows[:length].copy()
        else:
            # What lies beyond the old length is not promised.
            length = len(self.rows)
            self.data.set_length(length + len(new))
            self.rows = np.concatenate([self.rows, self.data[length:]])
            self.data[length:] = new
            self.rows[length:] = new
        self.reduce_rows(self.data, self.rows)

    def add_up(self):
        rows = self._some_rows(least=self.n_ranks)
        self.summing(rows)
        self._added(rows)

    def _added(self, rows):
        shards = np.array_split(rows, self.n_ranks)
        self.values["total"] = [
            value + shard.sum(axis=0) for value, shard in zip(self.values["total"], shards, strict=True)
        ]

    def do_several(self):
        rows, row = self._some_rows(least=self.n_ranks), self.rng.normal(size=COLUMNS)
        results = self.several(rows, row)
        self._added(rows)
        for name in ("total", "v"):
            self._same_everywhere(name, np.mean(self.values[name], axis=0))
        self._check_reduced(results, rows, row)

    def _same_everywhere(self, name, value):
        self.values[name] = [value.copy() for _ in range(self.n_ranks)]

    def all_reduce(self):
        op, combine = [("sum", np.sum), ("avg", np.mean), ("max", np.max)][self.rng.integers(3)]
        synk.all_reduce(self.variables["v"], op)
        self._same_everywhere("v", combine(self.values["v"], axis=0))
        check("gather", synk.gather(self.variables["v"]), self.values["v"])

    def reduce(self):
        result = synk.reduce(self.variables["v"], "min", in_place=False)
        check("reduce", result, np.min(self.values["v"], axis=0))

    def broadcast(self):
        value = self.rng.normal(size=COLUMNS)
        synk.broadcast(self.variables["v"], value)
        self._same_everywhere("v", value)

    def set_one(self):
        rank, value = int(self.rng.integers(self.n_ranks)), self.rng.normal(size=COLUMNS)
        synk.set_value(rank, self.variables["v"], value)
        self.values["v"][rank] = value
        check("get_value", synk.get_value(rank, self.variables["v"]), value)

    def scatter(self):
        rows = self._some_rows(least=self.n_ranks)
        synk.scatter(self.variables["table"], rows)
        self.values["table"] = np.array_split(rows, self.n_ranks)
        check("gather", synk.gather(self.variables["table"], nd_up=0), rows)

    def make_data(self):
        rows = self.rng.normal(size=(int(self.rng.integers(5_000, 50_000)), COLUMNS))
        self.reduce_rows(synk.data(rows), rows)

    def broadcast_large(self):
        value = self.rng.normal(size=int(self.rng.integers(10_000, 400_000)))
        synk.broadcast(self.large, value)
        synk.all_reduce(self.large, "sum")
        found = synk.get_value(int(self.rng.integers(self.n_ranks)), self.large)
        check("large", found, self.n_ranks * value)

    def send_large(self):
        """Send a variable that is much larger than a socket's buffer."""
        value = self.rng.normal(size=int(self.rng.integers(100_000, 1_000_000)))
        fresh = pytensor.shared(value, name="fresh")
        found = synk.function([], (fresh.sum(), "gather"), name="fresh")()
        check("fresh", found, [value.sum()] * self.n_ranks)

    def compile(self):
        x, factor = pt.matrix("x"), self.rng.normal()
        made = synk.function([x], (Spot(COMPILING)(x * factor).sum(axis=0), "sum"), name="made")
        synk.distribute()
        rows = self._some_rows()
        check("made", made(rows), factor * rows.sum(axis=0))

    def train(self):
        for _ in range(int(self.rng.integers(1, 6))):
            x = self._some_rows()
            y = x @ np.arange(COLUMNS)
            found = self.step(x, y)
            weights, velocity = self.values["weights"][0], self.values["velocity"][0]
            rest = x @ weights - y
            velocity = 0.9 * velocity - RATE * 2 * x.T @ rest / len(x)
            self._same_everywhere("velocity", velocity)
            self._same_everywhere("weights", weights + velocity)
            check("loss", found, (rest**2).mean())

    # --- what holds at any time --------------------------------------------------------------------

    def fetch(self):
        """Return the values that every rank holds, by name and rank."""
        return {
            name: [synk.get_value(rank, variable) for rank in range(self.n_ranks)]
            for name, variable in self.variables.items()
        }

    def check_all(self):
        """Hold every variable of every rank, and the Data, to the model."""
        self._check_variables(self.fetch(), self.values, exact=False)
        check("data", self.data.data, self.rows, exact=True)

    def _check_variables(self, found, expected, exact):
        for name, values in expected.items():
            for rank, value in enumerate(values):
                check(f"{name} on rank {rank}", found[name][rank], value, exact)

    def commit(self):
        """Commit: the run keeps the values of the ranks, and the model a copy of them."""
        held = self.fetch()
        synk.commit()
        self.committed = held

    def check_restored(self):
        """After a restart every rank holds, in every bit, what was committed."""
        found = self.fetch()
        if self.committed is not None:
            self._check_variables(found, self.committed, exact=True)
        else:  # rank 0's values; which of a broken command's they are is not promised
            for name, values in found.items():
                for rank, value in enumerate(values):
                    check(f"{name} on rank {rank}", value, values[0], exact=True)
        self.values = {name: [value.copy() for value in values] for name, values in found.items()}
        check("data", self.data.data, self.rows, exact=True)

    def renew_data(self):
        """Replace the Data by new ones."""
        self.data = synk.data(self.rows, name="rows")

    def heal(self, data=False):
        """After a command that failed half-way, give the ranks, and the Data, the model's values again."""
        if data:
            self.data.set_value(self.rows)
        for name, values in self.values.items():
            if all(np.array_equal(value, values[0]) for value in values):
                synk.broadcast(self.variables[name], values[0])
                continue
            for rank, value in enumerate(values):
                synk.set_value(rank, self.variables[name], value)


DEEDS = {
    deed.__name__: deed
    for deed in (
        World.reduce_rows,
        World.change_data,
        World.add_up,
        World.do_several,
        World.all_reduce,
        World.reduce,
        World.broadcast,
        World.set_one,
        World.scatter,
        World.make_data,
        World.broadcast_large,
        World.send_large,
        World.compile,
        World.train,
    )
}
