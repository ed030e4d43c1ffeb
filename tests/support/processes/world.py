"""Everything public, as calls that need a run or need none, and what they are given."""

import inspect
import os
import types

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.run.arrays.data import INTERNAL

MASTER = os.getpid()

# They begin and end a run, or do nothing before they are entered, so they have tests of their own.
OF_THE_RUN = {"fork", "close", "is_open", "per_rank", "turn"}

# What is known without the run, or asked of the values in hand only.
FACTS = {
    synk.Data: {
        "dtype",
        "ndim",
        "shape",
        "size",
        "alloc_size",
        "minibatch",
        "name",
        "filename",
    }
    | {"__len__", "__repr__"},
    synk.Function: {
        "name",
        "inputs",
        "output_modes",
        "update_modes",
        "n_results",
        "returns",
        "state",
        "scattered",
        "outputs",
        "fingerprint",
        "gathers",
        "explain",
        "parts",
        "__repr__",
    },
}

# Dunder methods of Data and Function; all others are found by name.
ITEMS, EXPORTS = ["__getitem__", "__setitem__"], ["__array__", "__dlpack__", "__dlpack_device__"]
SPECIAL = {
    synk.Data: [*ITEMS, *EXPORTS, "__len__", "__repr__"],
    synk.Function: ["__call__", "__repr__"],
}


def idle(rank, *arguments):
    """Return an object that does nothing."""
    return print


class World:
    """Shared variables and graphs; and in an open run, Data and functions."""

    def __init__(self, open_run=True):
        self.x = pt.vector("x")
        self.v = pytensor.shared(np.ones(4), name="v")
        # What is given for a parameter of this name.
        self.arguments = {
            "shared_vars": self.v,
            "values": np.ones(4),
            "rank": 0,
            "inputs": [self.x],
            "items": (synk.all_reduce, self.v),
            "input_data": np.ones(4),
            "length": 3,
            "shape": (3,),
            "key": 0,
            "value": 2.0,
            "args": np.ones(4),
            "seconds": 60.0,
            "path": "timeline.json",
            "make": idle,
            "arguments": 0,
            "update": None,
            "flat": self.v,
        }
        if open_run:
            self.arguments["update"] = synk.function([], updates=[(self.v, self.v * 1)], name="u")
            self.data = synk.data(np.arange(4.0), name="d")
            self.function = synk.function([self.x], (self.x.sum(), "sum"), name="f")
            self.sequence = synk.sequence(self.function, (synk.all_reduce, self.v))
            self.function(self.data)

    def call(self, callable_):
        """Call something with what its parameters need."""
        arguments, keywords = [], {}
        for name, parameter in inspect.signature(callable_).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.default is parameter.empty:
                assert name in self.arguments, f"say in World.arguments what to give for {name!r}"
                arguments.append(self.arguments[name])
            elif name == "n_calls":
                keywords[name] = 1
        value = callable_(*arguments, **keywords)
        if callable_ is synk.timeline:
            value.close()
        return value

    def verbs(self):
        """Yield every public verb, by name, as a call without arguments."""
        for name in sorted(synk.__all__):
            verb = getattr(synk, name)
            if isinstance(verb, types.FunctionType) and name not in OF_THE_RUN:
                yield f"synk.{name}", lambda verb=verb: self.call(verb)

    def uses(self, thing, facts):
        """Yield every use of a Data or Function, by name, as a call without arguments."""
        kind = synk.Data if isinstance(thing, synk.Data) else synk.Function
        names = [name for name in dir(kind) if not name.startswith("_")] + SPECIAL[kind]
        # Used by the package only.
        inner = (
            INTERNAL
            if kind is synk.Data
            else {"can_batch", "can_batch_s", "can_slice", "prepare", "run_alone", "as_written"}
            | {"check_alone", "effects", "explanation", "graph_text"}
        )
        for name in names:
            if name not in inner and (name in FACTS[kind]) == facts:
                yield f"{kind.__name__}.{name}", lambda name=name: self.use(thing, name)

    def use(self, thing, name):
        value = getattr(thing, name)
        return self.call(value) if callable(value) else value

    def all(self, facts):
        for thing in (self.data, self.function, self.sequence):
            yield from self.uses(thing, facts)


def seen(value):
    """Return something that compares."""
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


def not_refused(calls, match=""):
    """Return the names of the calls that do not raise SynkStateError with ``match`` in it."""
    wrong = []
    for name, call in calls:
        try:
            call()
            wrong.append(f"{name} was allowed")
        except synk.SynkStateError as error:
            if match not in str(error):
                wrong.append(f"{name}: {error}")
        except BaseException as error:
            wrong.append(f"{name}: {error!r}")
    return wrong


def still_right(world):
    """Check that the run does what it did."""
    assert world.function(np.arange(5.0)) == 10
    assert synk.gather(world.v).shape == (len(synk.pids()), 4)
    world.data.set_value(np.arange(7.0))
    assert world.function(world.data) == 21


STALE = []  # the world of the script, as its workers found it when they were forked
