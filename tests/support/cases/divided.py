"""A small training, whose update every rank makes, or each rank a part of it."""

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from support.processes.of_rank import same_on_all
from synk.extensions import updates
from synk.extensions.train import make_train_function
from synk.run.arrays.shared_storage import SharedStorage
from synk.values.errors import SharedMemoryFull

RULES = {  # elementwise ones, by name, with their settings
    **{
        name: {"learning_rate": 0.05}
        for name in ("sgd", "momentum", "nesterov_momentum", "adagrad", "rmsprop")
    },
    **{name: {} for name in ("adadelta", "adam", "adamax", "adamw", "amsgrad")},
}
X = np.random.default_rng(1).normal(size=(7, 3)).astype("float32")


class Trained:
    """A perceptron with one hidden layer, and its step; sizes fill no cache line exactly."""

    def __init__(self, rule=updates.adam, shard="auto", hidden=21, **options):
        self.x = pt.fmatrix("x")
        self.params = [
            pytensor.shared(np.asarray(value, "float32"), name=name)
            for name, value in self.begin(hidden).items()
        ]
        W, b, v, c = self.params
        self.loss = pt.sqr(pt.tanh(self.x @ W + b) @ v + c - 1).mean()
        self.step = make_train_function(self.loss, self.params, [self.x], rule, shard=shard, **options)

    @staticmethod
    def begin(hidden=21):
        """Return the parameters before the first step."""
        random = np.random.default_rng(2)
        shapes = {"W": (3, hidden), "b": (hidden,), "v": (hidden,), "c": ()}
        return {name: np.asarray(random.normal(size=shape)) for name, shape in shapes.items()}

    def begin_anew(self):
        """Give the variables the values that they began with."""
        begun = {"t": 0, **{name: value.astype("float32") for name, value in self.begin().items()}}
        for variable in self.step.state:
            value = begun.get(variable.name, np.zeros(variable.get_value().shape))
            synk.broadcast(variable, np.asarray(value, variable.type.dtype))

    def train(self, n_steps=3, **keywords):
        return [float(self.step(X, **keywords)) for _ in range(n_steps)]

    def values(self):
        return [variable.get_value() for variable in self.step.state]


def assert_equal(one, other, n_ranks=1):
    for a, b, variable in zip(one.values(), other.values(), one.step.state, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=variable.name)
    for variable in one.params:
        same_on_all(variable, n_ranks)


def is_divided(trained):
    return "live once" in "\n".join(trained.step.explanation())


def flat_of(parts):
    return parts.all_reduce.args[0][0]


def without_room_for_arrays_of_each_rank(monkeypatch):
    """Refuse blocks in which each rank has its own array; vectors and staging buffers have room."""

    def refusing(self, *arguments):
        raise SharedMemoryFull("no room, says the test")

    monkeypatch.setattr(SharedStorage, "_allocate", refusing)
