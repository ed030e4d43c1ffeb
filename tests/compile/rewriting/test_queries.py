"""Rewriters that are kept: one query for many functions, a new one when something has changed."""

import sys
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, GraphRewriter, node_rewriter
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.rewriting.basic import register_canonicalize

from synk.compile import array_mode
from synk.compile.rewriting.queries import kept_rewriter
from synk.compile.rewriting.rewrites import array_query

NAME = "sine_to_tangent"
x = pt.dvector("x")


@pytest.fixture
def queries(monkeypatch):
    """Return the queries of PyTensor's database that are made from now on."""
    made = []
    database = type(optdb)
    query = database.query

    def noting(self, *arguments, **keywords):
        if self is optdb:
            made.append(arguments)
        return query(self, *arguments, **keywords)

    monkeypatch.setattr(database, "query", noting)
    return made


@pytest.fixture
def sines_are_tangents():
    """Return what registers such a rewrite, until the test ends."""

    @node_rewriter([Elemwise])
    def sine_to_tangent(fgraph, node):
        return [pt.tan(node.inputs[0])] if node.op == pt.sin else None

    yield lambda: register_canonicalize(sine_to_tangent, name=NAME)
    database = optdb["canonicalize"]
    (rewriter,) = database.__db__.pop(NAME)
    database._names.remove(NAME)
    for named in database.__db__.values():
        named.discard(rewriter)


def value(mode):
    return pytensor.function([x], pt.sin(x), mode=mode)([1.0])


def tags_of(name):
    database = optdb["canonicalize"]
    rewriter = database[name]
    return [tag for tag, named in list(database.__db__.items()) if rewriter in named]


def test_a_function_makes_no_query_that_was_made_before(queries):
    for _ in range(2):  # what the first one loads registers rewrites
        pytensor.function([x], pt.tanh(x).sum(), mode=array_mode())
    del queries[:]
    pytensor.function([x], pt.exp(x).sum(), mode=array_mode())
    assert not queries


def test_a_rewrite_that_is_registered_later_is_applied_until_it_is_taken_out(sines_are_tangents):
    assert value(array_mode()) == pytest.approx(0.8414709848)
    sines_are_tangents()
    assert value(array_mode()) == pytest.approx(1.5574077247)
    optdb["canonicalize"].remove_tags(NAME, "fast_run")
    assert value(array_mode()) == pytest.approx(0.8414709848)


def test_a_rewrite_in_the_place_of_another_is_applied(sines_are_tangents):
    sines_are_tangents()
    assert value(array_mode()) == pytest.approx(1.5574077247)

    @node_rewriter([Elemwise])
    def sine_to_exponential(fgraph, node):
        return [pt.exp(node.inputs[0])] if node.op == pt.sin else None

    register_canonicalize(sine_to_exponential, name=NAME, overwrite_existing=True)
    assert value(array_mode()) == pytest.approx(2.7182818285)


def test_a_tag_that_moves_to_another_rewrite_is_noticed():
    database = optdb["canonicalize"]
    first, second = [one for one in database._names if "fast_run" in tags_of(one)][:2]
    before = array_mode().optimizer
    database.remove_tags(first, "fast_run")
    try:
        assert array_mode().optimizer is not before
    finally:
        database.add_tags(first, "fast_run")
    moved = array_mode().optimizer  # the tag has its rewrites in another order now
    database.remove_tags(second, "fast_run")
    database.add_tags(second, "fast_run")
    assert array_mode().optimizer is not moved


def test_threads_query_at_the_same_time():
    failed = []

    def query(number):
        try:
            for k in range(30):
                optdb.query(f"+absent {number} {k}")  # which adds a name without a rewrite
                assert array_mode().optimizer
        except RuntimeError as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=query, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed


def test_what_a_mode_leaves_out_is_left_out_there_alone(sines_are_tangents):
    sines_are_tangents()
    assert value(array_mode().excluding(NAME)) == pytest.approx(0.8414709848)
    assert value(array_mode()) == pytest.approx(1.5574077247)


def test_a_flag_of_pytensor_that_queries_read_is_followed():
    def ratios():
        searches = [one for one in array_mode().optimizer if isinstance(one, EquilibriumGraphRewriter)]
        return {search.max_use_ratio for search in searches}

    assert ratios() == {config.optdb__max_use_ratio}
    with config.change_flags(optdb__max_use_ratio=3.0):
        assert ratios() == {3.0}
    assert ratios() == {config.optdb__max_use_ratio}


def test_a_rewrite_of_one_mode_is_run_in_that_one():
    class Note(GraphRewriter):
        seen = 0

        def apply(self, fgraph):
            Note.seen += 1

    mode = array_mode()
    value(mode.register((Note(), 1.0)))
    value(mode)
    assert Note.seen == 1


def test_a_query_for_a_part_of_the_database_is_its_own():
    query = array_query(np)
    query.subquery = {"canonicalize": array_query(np)}
    assert kept_rewriter(query) is not kept_rewriter(query)
