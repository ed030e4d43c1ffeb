import html

import pytest

from synk.run.recording.spans import (
    COLLECTIVE,
    COMMAND,
    COMPUTING,
    GATHERING,
    WAITING,
    Track,
    complete_tracks,
)
from synk.run.recording.summary import Summary, own_times

MS = 1_000_000
ARRAY = (8, "float64", (1,))


def step(number, rank, begin, computing, until):
    """Return the spans of a training step that begins at ``begin``; its barrier is passed at ``until``."""
    after = begin + computing
    end = until + 1 * MS
    spans = [
        (GATHERING, "rows", begin, begin + MS // 2, 10),
        (COMPUTING, "gradient", begin, after, None),
        (WAITING, "barrier", after, until, None),
        (COLLECTIVE, "all_reduce avg", after, end, ARRAY),
        (COMMAND, "train" if rank == 0 else "", begin, end, number),
    ]
    return [*spans, (COMMAND, "", begin, end + 1, None)] if rank == 0 else spans


def tracks_of(computing, n_steps=10, script=0, late=(0, 0, 0)):
    """Return the tracks of steps in which each rank computes for so many nanoseconds, and some begin late."""
    length = (
        max(computing) + max(late) + 1 * MS + script + 1
    )  # rank 0 looks at the clock before and after its part
    return complete_tracks(
        [
            Track(rank, 100 + rank, 0, n_steps * length, spans)
            for rank, mine in enumerate(computing)
            for spans in [
                [
                    span
                    for number in range(n_steps)
                    for at in [number * length + script]
                    for span in step(number + 1, rank, at + late[rank], mine, at + max(computing) + max(late))
                ]
            ]
        ]
    )


def test_the_slowest_rank_is_named_with_the_function_and_what_it_costs_the_others():
    summary = Summary(tracks_of([5 * MS, int(5.6 * MS), 5 * MS]), {})
    assert summary.slowest == 1
    # By computing without the gathering of rows inside: 5.1 ms to 4.5 ms.
    assert summary.reasons == ["rank 1 computes 13% longer in 'gradient'; others wait 0.60 ms a step for it"]


def test_seconds_of_each_rank_add_up_to_all_of_them():
    for row in Summary(tracks_of([5 * MS, 7 * MS], script=2 * MS), {}).rows:
        kinds = ("computing", "compiling", "reducing", "gathering", "waiting", "script", "other")
        assert sum(row[kind] for kind in kinds) == pytest.approx(row["seconds"])
        assert row["n_commands"] == 10


def test_seconds_are_those_of_the_kind_without_what_is_inside():
    first, second = Summary(tracks_of([5 * MS, 7 * MS]), {}).rows
    assert (first["computing"], first["gathering"]) == pytest.approx((0.045, 0.005), abs=1e-6)
    assert (first["reducing"], first["waiting"]) == pytest.approx((0.010, 0.020), abs=1e-6)
    assert (second["computing"], second["waiting"]) == pytest.approx((0.065, 0.0), abs=1e-6)


def test_ranks_that_hardly_wait_have_no_slowest_one():
    summary = Summary(tracks_of([5 * MS, 5 * MS + MS // 50]), {})
    assert summary.slowest is None
    assert summary.reasons == []
    assert "no rank keeps the others waiting for long" in str(summary)


def test_a_rank_that_computes_no_longer_but_comes_late_is_not_said_to_compute_longer():
    summary = Summary(tracks_of([5 * MS, 5 * MS], late=(0, MS)), {})
    assert summary.reasons == ["rank 1 comes late after 'gradient'; others wait 1.00 ms a step for it"]


def test_a_script_that_does_something_else_is_a_reason():
    summary = Summary(tracks_of([5 * MS, 5 * MS], script=3 * MS), {})
    assert summary.slowest is None
    assert summary.reasons == ["workers wait 3.00 ms a command while the script does something else"]


def test_commands_in_which_a_rank_failed_are_not_compared():
    first, second = tracks_of([5 * MS, 7 * MS])
    failed = [span for span in second.spans if span.name != "barrier"]
    assert Summary([first, Track(1, 101, 0, second.end, failed)], {}).slowest is None


def test_one_rank_alone_waits_for_nobody():
    summary = Summary(tracks_of([5 * MS]), {"lost": "the others are not in it"})
    assert (summary.slowest, summary.reasons) == (None, [])
    assert str(summary).splitlines()[-1] == "the others are not in it"


def test_the_table_has_a_line_for_each_rank():
    heads, *ranks = str(Summary(tracks_of([5 * MS, 7 * MS, 5 * MS]), {})).splitlines()[:4]
    assert heads.split()[:4] == ["rank", "seconds", "commands", "computing"]
    assert [line.split()[:3] for line in ranks] == [[str(rank), "0.080", "10"] for rank in range(3)]


def test_own_times_of_nothing_are_none():
    assert not own_times([])


def test_a_notebook_shows_the_same_lines():
    summary = Summary(tracks_of([MS, 2 * MS]), {"cut": "rows < 3 & more are missing"})
    shown = summary._repr_html_()
    assert shown.startswith("<pre")
    assert html.unescape(shown[shown.index(">") + 1 : -len("</pre>")]) == str(summary)
    assert "&lt; 3 &amp; more" in shown
