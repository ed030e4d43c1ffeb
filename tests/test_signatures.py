"""What a verb takes by position is what comes to mind there; all else has to be named."""

import inspect

import numpy as np
import pytensor
import pytest

import synk
from synk.extensions import batches, checkpoint, fit, interchange, layers, losses, schedules, train, updates

# Of each verb, what it takes by position; "*" takes any number.
BY_POSITION = {
    "all_gather": "shared_vars",
    "all_reduce": "shared_vars op",
    "all_to_all": "shared_vars",
    "broadcast": "shared_vars values",
    "check_finite": "shared_vars",
    "close": "",
    "commit": "values",
    "data": "value var",
    "distribute": "num_slices",
    "fork": "n_parallel device",
    "function": "inputs outputs bcast_inputs",
    "gather": "shared_vars nd_up",
    "get_lengths": "shared_vars",
    "get_shapes": "shared_vars",
    "get_value": "rank shared_vars",
    "is_open": "",
    "n_ranks": "",
    "on_ranks": "make *arguments",
    "per_rank": "variable",
    "pids": "",
    "reduce": "shared_vars op",
    "reduce_scatter": "shared_vars op",
    "restart": "n_parallel",
    "scatter": "shared_vars values batch",
    "sequence": "*items",
    "set_value": "rank shared_vars values batch",
    "sharded_update": "update flat",
    "timeline": "path",
    "timeout": "seconds",
    "topology": "file",
    "turn": "what",
}

# Options of Synkhronos that are accepted and ignored.
LEGACY = {"nccl"}


def parameters(function):
    return list(inspect.signature(function).parameters.values())


def by_position(function):
    """Name the parameters that a call may give by position."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.POSITIONAL_OR_KEYWORD: ""}
    return [stars[one.kind] + one.name for one in parameters(function) if one.kind in stars]


def verbs():
    return {name: getattr(synk, name) for name in synk.__all__ if inspect.isfunction(getattr(synk, name))}


def public():
    """Yield what users call: verbs, methods, and functions and classes of the extensions."""
    yield from verbs().items()
    for kind in (synk.Data, synk.Function):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") or name == "__call__":
                yield f"{kind.__name__}.{name}", method
    for room in (fit, layers):
        yield from ((f"{room.__name__}.{name}", getattr(room, name)) for name in room.__all__)
    for module in (checkpoint, interchange, losses, schedules, train, updates):
        for name, member in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{module.__name__}.{name}", member
    yield "batches", batches


def test_verbs_take_by_position_what_comes_to_mind_there():
    assert {name: " ".join(by_position(verb)) for name, verb in verbs().items()} == BY_POSITION


def test_what_is_on_or_off_is_named():
    """``load(path, a, b)`` and ``set_shape(3, 2)`` do not take the last for an option."""
    flags = [
        f"{where}: {one.name}"
        for where, function in public()
        if callable(function)
        for one in parameters(function)
        if (isinstance(one.default, bool) or one.name in {"oversize", *LEGACY})
        and one.kind != one.KEYWORD_ONLY
    ]
    assert flags == []


def test_a_second_variable_is_not_taken_for_an_option(module_ranks):
    v, w = (pytensor.shared(np.full(2, number), name=name) for number, name in ((1.0, "v"), (2.0, "w")))
    for verb in (synk.all_gather, synk.all_to_all, synk.check_finite):
        with pytest.raises(TypeError, match=rf"synk\.{verb.__name__}\(shared_vars.*too many positional"):
            verb(v, w)
        with pytest.raises(TypeError, match=rf"synk\.{verb.__name__}\(shared_vars.*too many positional"):
            synk.sequence((verb, v, w))
    for verb in (
        synk.broadcast,
        synk.scatter,
        synk.all_reduce,
        synk.reduce,
        synk.reduce_scatter,
        synk.gather,
    ):
        with pytest.raises((TypeError, ValueError)):
            verb(v, w)
    for verb in (synk.broadcast, synk.all_gather, synk.all_reduce, synk.reduce, synk.gather):
        with pytest.raises(TypeError, match="nccl=w is neither True nor False"):
            verb(v, nccl=w)
    with pytest.raises(TypeError, match="in_place=w is neither True nor False"):
        synk.reduce(v, in_place=w)
    with pytest.raises(TypeError, match=r"synk\.reduce\(.*unexpected keyword argument 'inplace'"):
        synk.reduce(v, inplace=False)
    assert synk.gather([v, w])[1].tolist() == [[2, 2]] * module_ranks
