"""Candidates of a GPU's figures: who breaks, is late or computes other losses does not hide the others."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LEADER = f"""
import os, sys, time
sys.path.append({str(BENCHMARKS)!r})
import lines

kind = sys.argv[1]
if kind == "late":
    time.sleep(60)
if kind == "broken":
    raise SystemExit("no kernel")

def step(number):
    if kind == "dying" and number > 8:
        os._exit(1)
    time.sleep(0.02 if kind == "slow" else 0.001)
    return 3.0 if kind == "other" else 2.0

lines.serve(step, [os.getpid()], 0.1)
"""


@pytest.fixture
def race(module, tmp_path):
    """Return a function that lets kinds of leaders run, and returns their table; "us" is ours."""
    gpu_race, lines = module("gpu_race"), module("lines")
    (tmp_path / "leader.py").write_text(LEADER)
    to = tmp_path / "found.json"

    def run(seconds=60.0, **kinds):
        options = SimpleNamespace(end=time.monotonic() + seconds, seconds=seconds, quick=True, to=to)
        crews = {name: lines.Crew([str(tmp_path / "leader.py"), kind]) for name, kind in kinds.items()}
        asked = {"tolerance": 0.1, "rival": "them", "times": 2, "ours": "us"}
        found = gpu_race.Race(options, "a title", "a note.", steps=2, amount=10, **asked).run(crews)
        assert json.loads(to.read_text()) == found
        return found

    return run


def test_all_are_timed_and_the_rival_is_held_to_what_is_asked(race):
    found = race(us="quick", them="slow")
    assert [row[0] for row in found["rows"]] == ["us", "them"]
    assert found["met"] == "yes"
    assert "error" not in found
    assert "3 rounds" in found["note"]
    assert race(us="slow", them="quick")["met"] == "no"


def test_other_losses_are_told_and_nothing_is_met(race):
    found = race(us="quick", them="other")
    assert found["met"] == "no: losses differ"
    assert found["rows"][1][-1] == "3.0000, 5e-01 off: differ"


def test_a_rival_that_breaks_is_left_out_and_named(race):
    found = race(us="quick", more="broken", them="slow")
    assert [row[0] for row in found["rows"]] == ["us", "them"]
    assert "Left out: more: " in found["note"]
    assert found["met"] == "yes"


def test_rivals_are_measured_where_ours_break(race):
    found = race(us="broken", them="quick")
    assert [row[0] for row in found["rows"]] == ["them"]
    assert found["error"].startswith("us: ")
    assert found["met"] == "no"
