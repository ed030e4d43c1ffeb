"""Rules of `test_api_model` for Data: contents as those of a NumPy array that also grows and shrinks."""

import math

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

import synk
from support.api.arguments import DATA, lengths, mostly, sample, seeds, slots
from support.api.machine import Machine, Slot
from support.api.rules import Problems, Promised, check_integer

FILL = 1  # what a test writes where contents are undefined

oversizes = mostly(st.sampled_from([1, 1.5, 2]), st.sampled_from([0, 2.5]))
new_lengths = mostly(lengths | st.integers(0, 40), st.sampled_from([-1, True, 1.5, None]))
rows = st.integers(0, 5) | st.integers(-6, 5)
keys = rows | st.just(...) | st.builds(slice, st.none() | rows, st.none() | rows) | st.lists(rows, max_size=3)


def change(verb, **arguments):
    return st.tuples(st.just(verb), st.fixed_dictionaries(arguments))


changes = st.one_of(
    change(
        "remake",
        length=lengths,
        seed=seeds,
        by=mostly(st.sampled_from(["value", "shape"]), st.sampled_from(["nothing", "object"])),
    ),
    change(
        "set_value",
        dtype=mostly(
            st.none() | st.sampled_from(["bool", "int8"]), st.sampled_from(["float64", "complex128"])
        ),
        length=lengths,
        seed=seeds,
        deeper=mostly(st.just(False), st.just(True)),
        force_cast=st.booleans(),
        oversize=oversizes,
    ),
    change("set_length", length=new_lengths, oversize=oversizes),
    change("set_shape", shape=st.lists(new_lengths, max_size=2).map(tuple), oversize=oversizes),
    change("set_item", key=keys, number=seeds),
    change("free_memory"),
)


def check_oversize(oversize):
    if not 1 <= oversize <= 2:
        raise Promised(ValueError)


def reshaped(contents, shape):
    """Return an array of another shape: items that fit stay in C order, others are `FILL`."""
    flat = np.full(math.prod(shape), FILL, contents.dtype)
    kept = min(flat.size, contents.size)
    flat[:kept] = contents.reshape(-1)[:kept]
    return flat.reshape(shape)


class DataRules(Machine):
    """Calls that make, read and change Data; one rule, so that others are called as often."""

    @rule(slot=slots, change=changes)
    def data(self, slot, change):
        verb, arguments = change
        getattr(self, f"_{verb}")(slot, **arguments)

    def _remake(self, slot, length, seed, by):
        dtype, ndim, minibatch = DATA[slot]
        value = sample((dtype, (length, 2)[:ndim], seed))
        keywords = {
            "value": {"value": value},
            "shape": {"shape": value.shape, "dtype": dtype},
            "nothing": {"ndim": 1},
            "object": {"value": value.astype(object)},
        }[by]

        def expect():
            if by in ("nothing", "object"):
                raise Promised(TypeError)

        def do():
            contents = value if by == "value" else np.zeros_like(value)
            self.slots[slot] = Slot(synk.data(minibatch=minibatch, name=slot, **keywords), contents)

        self.both(expect, do)

    def _set_value(self, slot, dtype, length, seed, deeper, force_cast, oversize):
        own, ndim, _ = DATA[slot]
        force_cast = force_cast and dtype != "complex128"  # NumPy warns of that
        value = sample((dtype or own, (*(length, 2)[:ndim], *[1] * deeper), seed))

        def expect():
            problems = Problems()
            if deeper or not (force_cast or np.can_cast(value.dtype, own, "safe")):
                problems.append(TypeError)
            problems.of(check_oversize, oversize)
            problems.settle()
            self.slots[slot].contents = value.astype(own)

        self.both(expect, lambda: self.slots[slot].data.set_value(value, force_cast, oversize))

    def _set_length(self, slot, length, oversize):
        old = self.slots[slot].contents

        def expect():
            problems = Problems()
            if old.ndim == 0:
                problems.append(TypeError)
            problems.of(check_integer, length, 0, np.inf, ValueError)
            problems.of(check_oversize, oversize)
            problems.settle()
            self.slots[slot].contents = reshaped(old, (length, *old.shape[1:]))

        def do():
            self.slots[slot].data.set_length(length, oversize)
            self.slots[slot].data[len(old) :] = FILL

        self.both(expect, do)

    def _set_shape(self, slot, shape, oversize):
        old = self.slots[slot].contents

        def expect():
            problems = Problems()
            if len(shape) != old.ndim:
                problems.append(ValueError)
            for length in shape:
                problems.of(check_integer, length, 0, np.inf, ValueError)
            problems.of(check_oversize, oversize)
            problems.settle()
            self.slots[slot].contents = reshaped(old, shape)

        def do():
            self.slots[slot].data.set_shape(shape, oversize)
            self.slots[slot].data.data.reshape(-1)[old.size :] = FILL

        self.both(expect, do)

    def _set_item(self, slot, key, number):
        def expect():
            contents = self.slots[slot].contents.copy()
            try:
                contents[key] = number
            except IndexError:
                raise Promised(IndexError) from None
            self.slots[slot].contents = contents

        self.both(expect, lambda: self.slots[slot].data.__setitem__(key, number))

    def _free_memory(self, slot):
        def expect():
            self.slots[slot].contents = np.full((0,) * DATA[slot][1], FILL, DATA[slot][0])

        def do():
            self.slots[slot].data.free_memory()
            assert self.slots[slot].data.alloc_size == 0
            self.slots[slot].data[...] = FILL

        self.both(expect, do)
