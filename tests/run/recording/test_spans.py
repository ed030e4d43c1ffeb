from dataclasses import replace

from synk.run.recording.spans import COMMAND, COMPUTING, SCRIPT, WAITING, Span, Track, complete_tracks, nested

# Rank 0's command has its own part of it inside, which knows its name and number.
MASTER = Track(
    0,
    10,
    0,
    100,
    [(COMPUTING, "f", 12, 20, None), (COMMAND, "train", 11, 25, 7), (COMMAND, "", 10, 40, None)],
)
WORKER = Track(1, 11, 2, 99, [(COMPUTING, "f", 16, 30, None), (COMMAND, "", 15, 35, 7)])


def test_commands_of_rank_0_have_names_and_replies_and_the_script_is_between_them():
    assert complete_tracks([MASTER])[0].spans == [
        Span(SCRIPT, "script", 0, 10),
        Span(COMMAND, "train", 10, 40, 7),
        Span(COMPUTING, "f", 12, 20),
        Span(WAITING, "for replies", 25, 40),
        Span(SCRIPT, "script", 40, 100),
    ]


def test_commands_of_workers_are_called_as_on_rank_0_and_waiting_is_between_them():
    assert complete_tracks([MASTER, WORKER])[1].spans == [
        Span(WAITING, "for a command", 2, 15),
        Span(COMMAND, "train", 15, 35, 7),
        Span(COMPUTING, "f", 16, 30),
        Span(WAITING, "for a command", 35, 99),
    ]


def test_a_command_that_rank_0_did_not_keep_has_no_name():
    _, worker = complete_tracks([replace(MASTER, spans=[]), WORKER])
    assert [span.name for span in worker.spans if span.kind == COMMAND] == [COMMAND]


def test_a_command_that_was_refused_before_any_rank_ran_it_is_none():
    refused = replace(MASTER, spans=[(COMMAND, "", 10, 12, None)])
    assert complete_tracks([refused])[0].spans == [Span(SCRIPT, "script", 0, 100)]


def test_a_track_of_another_machine_is_moved_to_the_clock_of_rank_0():
    _, moved = complete_tracks([MASTER, replace(WORKER, offset=1000)])
    _, plain = complete_tracks([MASTER, WORKER])
    assert (moved.begin, moved.end, moved.offset) == (1002, 1099, 0)
    assert [span.begin - 1000 for span in moved.spans] == [span.begin for span in plain.spans]
    assert [span.end - 1000 for span in moved.spans] == [span.end for span in plain.spans]


def test_the_time_of_what_was_dropped_is_not_taken_for_waiting():
    _, worker = complete_tracks([MASTER, replace(WORKER, n_dropped=3)])
    assert worker.begin == 15
    assert [span.begin for span in worker.spans if span.kind == WAITING] == [15, 35]


def test_spans_come_with_those_around_them():
    spans = [Span("a", "a", 0, 10), Span("b", "b", 0, 5), Span("c", "c", 5, 10), Span("d", "d", 10, 12)]
    found = [(span.name, [one.name for one in around]) for span, around in nested(spans)]
    assert found == [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", [])]
