"""What compares synk with JAX and torch.compile, with neither of them: turns, starts, and tables."""

import os
import time
from pathlib import Path

import pytest

from synk.tools.bench.pairs import Comparison

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Losses are its first argument. With a second one a step keeps a core busy for 0.2 s; without, it fills its
# cache, and a file says whether that was empty.
LEADER = """
import os, sys, time
sys.path.insert(0, {benchmarks!r})
import lines

def step(number):
    if sys.argv[2:]:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    else:
        with open(sys.argv[0] + ".caches", "a") as file:
            print("filled" if os.path.exists(os.environ["SYNK_CACHE"]) else "empty", file=file)
        os.makedirs(os.environ["SYNK_CACHE"], exist_ok=True)
        time.sleep(0.1)
    return float(sys.argv[1])

time.sleep(0.2)
lines.serve(step, [os.getpid()], 0.1)
"""


@pytest.fixture
def leader(tmp_path):
    """A script that takes 0.2 s to start and 0.1 s for a step."""
    path = tmp_path / "leader.py"
    path.write_text(LEADER.format(benchmarks=str(BENCHMARKS)))
    return str(path)


@pytest.fixture
def peers(module):
    return module("peers")


def test_turns_have_the_time_of_the_processor_beside_that_of_the_clock(peers, leader, monkeypatch, tmp_path):
    monkeypatch.setenv("SYNK_CACHE", str(tmp_path / "there"))
    crews = {"synk": peers.Crew([leader, "2"]), "busy": peers.Crew([leader, "2"], [leader, "2", "busy"])}
    clock, processor = peers.take_turns(crews, steps=2, rounds=1)
    assert clock.median("busy") >= 0.2
    assert 0.2 <= processor.median("busy") < 0.3
    assert processor.median("synk") < 0.1 <= clock.median("synk")


def test_time_of_the_processor_is_that_of_all_threads_and_of_other_processes(module):
    lines, before = module("lines"), time.process_time()
    here = lines.processor([os.getpid()])
    assert before <= here <= time.process_time()
    assert lines.processor([os.getpid(), os.getppid()]) > here


def test_starts_are_timed_to_the_first_step_and_from_both_caches(peers, leader, tmp_path):
    taken, loss = peers.first_step([leader, "3"], tmp_path / "new")
    assert loss == 3
    assert taken > 0.3
    caches = Path(leader + ".caches")
    caches.unlink()
    commands = {"synk": [leader, "3"], "other": [leader, "3"]}
    rows = peers.table_of_starts("it", commands, rounds=2).splitlines()[2:]
    names = ["synk, empty cache", "synk, filled cache", "other"]
    assert [row.split("|")[1].strip() for row in rows] == names
    assert "1.00 (1.00–1.00)" in rows[0]
    in_turn = ["empty", "filled", "empty"]  # the second round goes from the last to the first
    assert caches.read_text().split() == ["empty", "filled", *in_turn, *in_turn]


def test_candidates_that_lose_otherwise_are_not_started_for_time(peers, leader):
    with pytest.raises(SystemExit, match="losses differ"):
        peers.table_of_starts("it", {"synk": [leader, "3"], "other": [leader, "4"]}, rounds=1)


def test_ratios_are_of_the_same_round_and_have_their_range(peers):
    comparison = Comparison({"a": [1.0, 2.0, 4.0], "b": [2.0, 2.0, 2.0], "c": [1.0, 1.0, 1.0]})
    assert peers.in_words(comparison, "b") == ["2.00 s", "1.00 (0.50–2.00)"]
    assert peers.in_words(comparison, "b", "c", "b") == ["2.00 s", "2.00 (2.00–2.00)", "1.00 (1.00–1.00)"]


def test_bytes_of_the_kernel_are_those_of_a_ranks_part(module):
    update = module("peers_update")
    for n_ranks, numbers in ((2, 8), (4, 10)):  # gradients of all ranks, and three that are read and written
        copies = update.Copies(0, n_ranks, 400)
        copies()
        assert 2 * copies._target.size == numbers * 400 // n_ranks
        assert copies._target.all()
