"""When memory of a region's own is given back, and when it may be taken over."""

from synk.compile.regions.places import Places


def places_of_two():
    places = Places()
    places.put("v1", {places.take(0)}, whole=True)
    places.put("v2", {places.take(0)}, whole=True)
    places.put("argument")
    return places


def test_a_place_is_given_back_after_the_last_node_that_needs_it():
    places = places_of_two()
    places.put("part of v1", places.of("v1"))
    places.keep("part of v1", 3)
    places.keep("v1", 2)
    assert [list(places.given_back_after(k)) for k in range(4)] == [[1], [], [], [0]]


def test_a_view_may_lie_in_several_places():
    places = places_of_two()
    places.put("either", places.of("v1") | places.of("v2"))
    places.keep("either", 5)
    assert list(places.given_back_after(5)) == [0, 1]
    assert places.is_own_since("either", 0)
    assert not places.is_own_since("either", 1)
    assert not places.is_own_since("argument", 0)


def test_a_whole_place_that_nothing_else_needs_may_be_taken_over():
    places = places_of_two()
    places.put("part of v1", places.of("v1"))
    places.keep("v1", 2)
    assert places.is_free_after("v1", 2, ["v2", "argument"])
    assert not places.is_free_after("v1", 1, ["v2"])  # node 2 reads it
    assert not places.is_free_after("v1", 2, ["part of v1"])
    assert not places.is_free_after("v1", 2, ["v1"])  # twice
    assert not places.is_free_after("part of v1", 2, [])
    assert not places.is_free_after("argument", 2, [])
