"""`synk.timeline` on real ranks: what is in the file, and what happens when things go wrong."""

import gc
import json
import os
import time
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.trace_events import read_trace
from support.processes.scripts import in_world, script
from support.slow import slow
from synk.extensions import updates
from synk.extensions.train import make_train_function
from synk.ops import all_reduce
from synk.run.recording import recorder
from synk.run.session import current

pytestmark = pytest.mark.usefixtures("warm_interpreter")

ROWS = np.random.default_rng(0).normal(size=(600, 5))
WITH_SUPPORT = f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
ORDER = np.random.default_rng(1).permutation(600)


def training(slow_rank=None):
    """Return a training step and its weights; one rank may compute longer than the others."""
    x = pt.matrix("x")
    w, g = (pytensor.shared(np.zeros(5), name=name) for name in "wg")
    y = x if slow_rank is None else Pause(synk.pids()[slow_rank])(x)
    gradient = synk.function([x], updates=[(g, y.mean(axis=0), "avg")], name="gradient")
    update = synk.function([], updates=[(w, w - 0.1 * g)], name="update")
    return synk.sequence(gradient, (synk.all_reduce, g), update, name="train"), w


PAUSE = 0.2  # seconds: a busy machine keeps no other rank from its core for so long in every step


class Pause(pytensor.graph.Op):
    """The input, later in one process."""

    __props__ = ("pid",)

    def __init__(self, pid):
        self.pid = pid

    def make_node(self, x):
        return pytensor.graph.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if os.getpid() == self.pid:
            time.sleep(PAUSE)
        outputs[0][0] = inputs[0].copy()


def spans_of(document, pid):
    return [event for event in document["traceEvents"] if event["pid"] == pid and event["ph"] == "X"]


@pytest.mark.parametrize("n_ranks", [1, slow(2), 3])
def test_the_file_has_what_every_rank_did(ranks, tmp_path, n_ranks):
    ranks(n_ranks)
    train, _ = training()
    data = synk.data(ROWS)
    train(data, batch=ORDER[:300])
    with synk.timeline(tmp_path / "run.json") as timeline:
        for _ in range(4):
            train(data, batch=ORDER[:300])
        train(data, batch=slice(0, 300))
    document = read_trace(tmp_path / "run.json")
    assert timeline.path == str(tmp_path / "run.json")
    for pid in synk.pids():
        spans = Counter((event["cat"], event["name"]) for event in spans_of(document, pid))
        assert spans["command", "train"] == 5
        assert spans["computing", "gradient"] == spans["computing", "update"] == 5
        assert spans["collective", "all_reduce avg"] == 5
        assert spans["gathering", "rows"] == 4  # a slice is read in place
        assert spans["waiting", "barrier"] == (10 if n_ranks > 1 else 0)
        (about,) = {str(e["args"]) for e in spans_of(document, pid) if e["name"] == "all_reduce avg"}
        assert about == "{'bytes': 40, 'array': 'float64 (5,)'}"
    rows = timeline.summary().rows
    assert [(row["rank"], row["n_commands"]) for row in rows] == [(rank, 5) for rank in range(n_ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [updates.adam, slow(updates.clipped(updates.adam, 0.1))])
def test_an_update_of_parts_is_computing_between_two_meetings(ranks, tmp_path, rule):
    ranks(2)
    w = pytensor.shared(np.ones(5), name="w")
    x = pt.matrix("x")
    step = make_train_function(pt.sqr(x @ w).mean(), [w], [x], rule)
    step(ROWS)
    with synk.timeline(tmp_path / "run.json"):
        for _ in range(4):
            step(ROWS)
    document = read_trace(tmp_path / "run.json")
    for pid in synk.pids():
        spans = spans_of(document, pid)
        doing = [event for event in spans if event["cat"] in ("computing", "collective")]
        in_order = [event["name"] for event in sorted(doing, key=lambda event: event["ts"])]
        update = ["sharded update", "update", "sharded update"]
        if rule is not updates.adam:
            sums = ["sums of update", "sums of update", "sums of update", "all_reduce sum"]
            update = [*sums, *update]
        assert in_order == ["gradient", *update] * 4
        begins = [event for event in spans if event["name"] == "sharded update"]
        waits = [event for event in spans if event["name"] == "barrier"]
        for event in begins:
            inside = [one for one in waits if event["ts"] <= one["ts"] <= event["ts"] + event["dur"]]
            assert len(inside) == 1


def test_clocks_of_ranks_agree(ranks, tmp_path):
    """Every rank leaves a barrier after all have come to it."""
    ranks(3)
    train, _ = training()
    train(ROWS)
    with synk.timeline(tmp_path / "run.json"):
        for _ in range(20):
            train(ROWS)
    document = read_trace(tmp_path / "run.json")
    barriers = [
        [event for event in spans_of(document, pid) if event["name"] == "barrier"] for pid in synk.pids()
    ]
    assert {len(those) for those in barriers} == {40}
    for met in zip(*barriers, strict=True):
        assert max(e["ts"] for e in met) <= min(e["ts"] + e["dur"] for e in met)


@pytest.mark.slow
def test_the_slowest_rank_is_named(ranks, tmp_path):
    ranks(3)
    train, _ = training(slow_rank=1)
    train(ROWS)
    with synk.timeline(tmp_path / "run.json") as timeline:
        for _ in range(3):
            train(ROWS)
    summary = timeline.summary()
    assert summary.slowest == 1
    assert summary.reasons[0].startswith("rank 1 computes ")
    assert "longer in 'gradient'; others wait " in summary.reasons[0]
    assert summary.reasons[0] in str(summary)


def test_collectives_inside_a_graph_and_rows_gathered_ahead_are_in_it(ranks, tmp_path):
    ranks(2)
    x = pt.matrix("x")
    f = synk.function([x], (all_reduce(x.sum(), "sum"), None), name="inside")
    rows = synk.data(np.ones((4000, 1000)))
    orders = [np.random.default_rng(seed).permutation(4000) for seed in range(3)]
    f(rows, batch=orders[0], next_batch=orders[1])
    with synk.timeline(tmp_path / "run.json"):
        f(rows, batch=orders[1], next_batch=orders[2])
        f(rows, batch=orders[2])
    document = read_trace(tmp_path / "run.json")
    for pid in synk.pids():
        names = Counter(event["name"] for event in spans_of(document, pid))
        assert names["rows gathered ahead"] == 2
        (*_, inside) = (event for event in spans_of(document, pid) if event["name"] == "all_reduce sum")
        (*_, around) = (event for event in spans_of(document, pid) if event["cat"] == "computing")
        assert around["ts"] <= inside["ts"] <= inside["ts"] + inside["dur"] <= around["ts"] + around["dur"]


def watched_methods():
    """Return the methods that a recording has put in place of those of their classes, on rank 0."""
    rank = current._session._rank
    parts = [rank, rank.peers, rank.communicator, rank._shards, current._session._commands]
    own = {name for one in parts for name in vars(one)}
    return own & {"run", "call", "compile", "wait", "all_reduce", "inputs"}


def test_methods_are_those_of_their_classes_before_and_after(ranks, tmp_path):
    ranks(2)
    assert not watched_methods()
    with synk.timeline(tmp_path / "run.json"):
        assert watched_methods() > {"run", "call"}
    assert not watched_methods()


@pytest.mark.slow
def test_numbers_are_those_of_calls_that_nobody_records(ranks, tmp_path):
    ranks(3)
    values = []
    for recorded in (False, True):
        train, w = training()
        timeline = synk.timeline(tmp_path / "run.json") if recorded else None
        for start in range(0, 600, 100):
            train(ROWS, batch=ORDER[start : start + 100], num_slices=2)
        if timeline:
            timeline.close()
        values.append(synk.gather(w, nd_up=1))
    np.testing.assert_array_equal(values[0], values[1])


@pytest.mark.slow
def test_a_profile_may_be_made_meanwhile(ranks, tmp_path):
    ranks(2)
    train, _ = training()
    with synk.timeline(tmp_path / "run.json"):
        report = train.profile(ROWS, n_calls=3)
    assert [(group["op"], group["runs"]) for group in report.collectives] == [("all_reduce", 3)]
    document = read_trace(tmp_path / "run.json")
    reduces = [event for event in spans_of(document, os.getpid()) if event["name"] == "all_reduce avg"]
    assert len(reduces) == 4


def test_spans_beyond_the_limit_are_dropped_with_a_warning(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT", 50)
    ranks(2)
    train, _ = training()
    timeline = synk.timeline(tmp_path / "run.json")
    for _ in range(30):
        train(ROWS)
    with pytest.warns(synk.SynkWarning, match=r"the first \d+ spans of rank 0 are not in it; the first"):
        timeline.close()
    document = read_trace(tmp_path / "run.json")
    assert len(spans_of(document, synk.pids()[1])) < 100
    assert "of rank 1 are not in it" in document["otherData"]["rank 1"]
    assert "of rank 1 are not in it" in str(timeline.summary())


# --- opening and closing ----------------------------------------------------------------------------


def test_without_a_run_there_is_no_timeline():
    with pytest.raises(synk.SynkStateError, match=r"timeline: no run is open; call synk\.fork"):
        synk.timeline("run.json")


def test_paths_at_which_no_file_can_be_are_refused_at_once(ranks, tmp_path):
    ranks(2)
    with pytest.raises(FileNotFoundError, match="there is no such folder; make it first.*nowhere"):
        synk.timeline(tmp_path / "nowhere" / "run.json")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(FileExistsError, match="no regular file, so it stays.*pipe"):
        synk.timeline(tmp_path / "link")
    with pytest.raises(IsADirectoryError, match="this is a folder; name a file in it"):
        synk.timeline(tmp_path)
    with pytest.raises(TypeError, match="not int"):
        synk.timeline(3)
    with synk.timeline(tmp_path / "run.json"):  # none of these is open
        pass


def test_a_second_timeline_is_refused_until_the_first_is_closed(ranks, tmp_path):
    ranks(2)
    first = synk.timeline(tmp_path / "run.json")
    with pytest.raises(synk.SynkStateError, match="'.*run.json' is being recorded; close it first"):
        synk.timeline(tmp_path / "other.json")
    with pytest.raises(synk.SynkStateError, match="still recorded; close"):
        first.summary()
    first.close()
    first.close()
    with synk.timeline(tmp_path / "other.json"):
        pass
    assert sorted(os.listdir(tmp_path)) == ["other.json", "run.json"]


def test_a_relative_path_means_the_folder_in_which_it_was_opened(ranks, tmp_path, monkeypatch):
    ranks(1)
    monkeypatch.chdir(tmp_path)
    timeline = synk.timeline("run.json")
    monkeypatch.chdir("/")
    timeline.close()
    read_trace(tmp_path / "run.json")


def test_closing_the_run_closes_its_timeline(ranks, tmp_path):
    ranks(2)
    train, _ = training()
    with synk.timeline(tmp_path / "run.json") as timeline:
        train(ROWS)
        synk.close()
        assert len(timeline.summary().rows) == 2
    document = read_trace(tmp_path / "run.json")
    assert len({event["pid"] for event in document["traceEvents"]}) == 2


@pytest.mark.slow
def test_a_run_that_another_thread_computes_in_is_closed_in_time(tmp_path):
    script(
        f"""
def sleep_five():
    sleep_long(5)

synk.fork(2)
f = acting(0, sleep_five)
timeline = synk.timeline({str(tmp_path / "run.json")!r})
said = []
thread = threading.Thread(target=lambda: said.append(raised(synk.SynkStateError, f, ROWS, 1)))
thread.start()
time.sleep(0.3)
began = time.monotonic()
synk.close()
assert time.monotonic() - began < 4.5
thread.join()
assert "closed meanwhile" in str(said[0])
assert "closed in the middle of a call" in timeline.summary().notes["lost"]
assert [row["rank"] for row in timeline.summary().rows] == [0]
"""
    )
    read_trace(tmp_path / "run.json")


def test_a_file_that_cannot_be_written_leaves_the_run_as_it_was(ranks, tmp_path):
    ranks(2)
    train, _ = training()
    timeline = synk.timeline(tmp_path / "run.json")
    (tmp_path / "run.json").mkdir()
    with pytest.raises(FileExistsError):
        timeline.close()
    train(ROWS)
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_fork_of_the_script_writes_nothing(ranks, tmp_path):
    ranks(2)
    timeline = synk.timeline(tmp_path / "run.json")
    child = os.fork()
    if child == 0:
        timeline.close()
        os._exit(len(os.listdir(tmp_path)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    timeline.close()


def test_what_was_recorded_is_freed_with_the_timeline(ranks, tmp_path):
    ranks(2)
    with synk.timeline(tmp_path / "run.json") as timeline:
        kept = weakref.ref(timeline._recorder)
    synk.close()
    del timeline
    gc.collect()
    assert kept() is None


# --- when things go wrong ------------------------------------------------------------------------------


def test_a_rank_that_raises_ends_neither_the_timeline_nor_the_file(ranks, tmp_path):
    ranks(3)
    x = pt.matrix("x")
    third = synk.function([x], (x[2].sum(), "sum"), name="third")
    train, _ = training()
    timeline = synk.timeline(tmp_path / "run.json")
    train(ROWS)
    with pytest.raises(IndexError), timeline:
        third(ROWS[:7])  # only rank 0 has three rows
    document = read_trace(tmp_path / "run.json")
    for pid in synk.pids():
        names = [event["name"] for event in spans_of(document, pid) if event["cat"] == "command"]
        assert names[-1] == "third"
    with synk.timeline(tmp_path / "run.json"):
        train(ROWS)


@pytest.mark.slow
def test_the_file_is_written_when_a_worker_dies_and_the_warning_names_it(tmp_path):
    in_world(
        WITH_SUPPORT
        + f"""
world(3)
import json
from support.cases.trace_events import read_trace
path = {str(tmp_path / "run.json")!r}
def broken():
    with synk.timeline(path) as timeline:
        fine()
        raised(synk.WorkerDied, act, both, 1, "kill")
    return timeline
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    timeline = broken()
(said,) = [str(one.message) for one in caught]
assert "what workers did is not in it: rank 1 (pid" in said and "died of signal SIGKILL" in said, said
document = read_trace(path)
assert {{event["pid"] for event in document["traceEvents"]}} == {{os.getpid()}}
assert "rank 1" in document["otherData"]["lost"]
assert [row["rank"] for row in timeline.summary().rows] == [0]
synk.restart()
assert fine()
with synk.timeline(path) as timeline:
    assert fine()
assert len(timeline.summary().rows) == 3
synk.close()
"""
    )


@pytest.mark.slow
def test_a_restart_goes_on_with_the_timeline(tmp_path):
    in_world(
        WITH_SUPPORT
        + f"""
world(3)
from support.cases.trace_events import read_trace
path = {str(tmp_path / "run.json")!r}
timeline = synk.timeline(path)
fine()
raised(synk.WorkerDied, act, both, 2, "kill")
warnings.simplefilter("ignore", synk.SynkWarning)  # of variables without a commit
synk.restart()
fine()
(said,) = [str(one.message) for one in warned(timeline.close)]
assert said.endswith("what workers did before restart() is not in it"), said
document = read_trace(path)
assert {{event["pid"] for event in document["traceEvents"]}} == set(synk.pids())
count = lambda pid: sum(e["pid"] == pid and e.get("cat") == "command" for e in document["traceEvents"])
before_and_after, *after = map(count, synk.pids())
assert after[0] == after[1] and 0 < after[0] < before_and_after, (before_and_after, after)
rank = synk.run.session.current._session._rank
assert "wait" not in vars(rank.peers) and "run" not in vars(rank)
fine()
synk.close()
"""
    )


@pytest.mark.slow
def test_ctrl_c_in_the_middle_leaves_a_file(tmp_path):
    in_world(
        WITH_SUPPORT
        + f"""
world(3)
from support.cases.trace_events import read_trace
signal.signal(signal.SIGINT, signal.default_int_handler)
path = {str(tmp_path / "run.json")!r}
later(0.7, os.kill, os.getpid(), signal.SIGINT)
try:
    with synk.timeline(path) as timeline:
        while True:
            fine()
except KeyboardInterrupt:
    pass
document = read_trace(path)
assert {{event["pid"] for event in document["traceEvents"]}} == set(synk.pids())
assert fine()
synk.close()
"""
    )


def test_a_timeline_that_nobody_closes_is_written_when_the_script_ends(tmp_path):
    in_world(f"world(2)\ntimeline = synk.timeline({str(tmp_path / 'run.json')!r})\nfine()\n")
    assert len({event["pid"] for event in read_trace(tmp_path / "run.json")["traceEvents"]}) == 2
    assert json.loads((tmp_path / "run.json").read_text())["otherData"]["clock"] == "CLOCK_MONOTONIC"
