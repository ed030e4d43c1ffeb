"""Nothing that is to be saved gets lost on the way: it has a name of its own, and comes back as it was."""

import enum

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.extensions import updates
from synk.extensions.checkpoint.contents import named, plain


def shared(name):
    return pytensor.shared(np.zeros(3), name=name)


def test_what_a_rule_updates_is_named():
    x, w = pt.matrix("x", dtype="float64"), shared("w")
    made = updates.adam(pt.sqr(x @ w).mean(), [w])
    found = named(made)
    assert sorted(found) == ["t", "w", "w_mean", "w_squares"]
    assert found["w"] is w


def test_a_function_that_does_not_train_is_refused(ranks):
    ranks(1, device="cpu")
    with pytest.raises(TypeError, match="'count'.* has no state; pass what make_train_function returned"):
        named(synk.function([], updates=[(pytensor.shared(1.0), 2.0)], name="count"))


def test_parts_are_joined_and_a_variable_keeps_its_first_name():
    a, b, c = map(shared, "abc")
    found = named([{"first": a}, [a, b], (c,), {"first": a}.values(), c])
    assert list(found) == ["first", "b", "c"]
    assert list(found.values()) == [a, b, c]


@pytest.mark.parametrize("wrap", [list, tuple, lambda parts: [parts[0], {"W": parts[1]}]])
def test_two_of_one_name_are_refused(wrap):
    with pytest.raises(ValueError, match="two shared variables are called 'W'; name each"):
        named(wrap([shared("W"), shared("W")]))


@pytest.mark.parametrize("name", [None, ""])
def test_one_without_a_name_is_refused(name):
    with pytest.raises(ValueError, match="a shared variable of Vector.* has no name"):
        named([shared(name)])
    assert list(named({"mine": shared(name)})) == ["mine"]


@pytest.mark.parametrize(
    "other", ["text", np.zeros(2), None, pt.vector("x"), [[shared("a"), pt.vector("x")]]]
)
def test_what_is_no_shared_variable_is_refused(other):
    with pytest.raises(TypeError):
        named(other)


def test_numbers_of_numpy_become_those_of_python():
    kept = plain({"a": np.float32(0.5), "b": np.asarray(2), "c": {"d": [np.bool_(True)]}})
    assert kept == {"a": 0.5, "b": 2, "c": {"d": [True]}}
    assert [type(kept["a"]), type(kept["b"]), type(kept["c"]["d"][0])] == [float, int, bool]


@pytest.mark.parametrize(
    "value", [(1, 2), {1: 2}, {3}, b"x", 1j, np.zeros(2), [object()], {"a": (1,)}, len, enum.Enum]
)
def test_what_would_come_back_as_something_else_is_refused(value):
    with pytest.raises(TypeError, match="value 'mine' has a .* in it"):
        plain({"mine": value})


def test_names_of_values_are_strings():
    with pytest.raises(TypeError, match="name 3 is not a string"):
        plain({3: 4})
