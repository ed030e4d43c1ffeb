"""The benchmarks' own arithmetic, and small runs of the scripts, without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from synk.compile.native import find_onednn as onednn
from synk.tools.bench.pairs import Comparison

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SECONDS = 200  # for a script to end


# --- tables -----------------------------------------------------------------------------------------


def test_table_names_reference_units_and_quartiles(module):
    comparison = Comparison({"a": [0.5] * 4, "b": [1.0, 1.0, 2.0, 2.0]})
    table = module("markdown_tables").table(comparison, "what")
    header, rule, first, second = table.splitlines()
    assert "what" in header
    assert "× time of a" in header
    assert set(rule) == {"|", "-"}
    assert "500 ms" in first
    assert "1.50 s" in second
    assert "3.00 (2.00–4.00)" in second
    assert len({len(line) for line in table.splitlines()}) == 1


# --- candidates --------------------------------------------------------------------------------------


def test_candidates_that_compute_other_numbers_are_not_timed(module):
    rivals = module("rivals")
    values = {"one": np.ones(3), "other": np.array([1, 1, 1.001])}
    candidates = {name: rivals.Candidate(int, lambda v=v: [v]) for name, v in values.items()}
    with pytest.raises(SystemExit, match=r"other computes other numbers: array 0 is off by 1.0e-03"):
        rivals.agree(candidates)
    assert list(rivals.agree(candidates, tolerance=0.01)) == ["one", "other"]


def test_adam_is_that_of_its_formula(module):
    adam = module("adam")
    [candidate] = adam.candidates(50, {"python": "FAST_COMPILE"}, None).values()
    rng = np.random.default_rng(0)
    p, g = (rng.normal(size=50).astype("float32").astype("float64") for _ in range(2))
    m, v = np.zeros(50), np.zeros(50)
    for t in (1, 2, 3):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        p -= 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        candidate.step()
    assert np.allclose(candidate.values()[0], p, rtol=0, atol=1e-6)


def test_perceptron_computes_the_same_in_two_modes(module):
    mlp, rivals = module("mlp"), module("rivals")
    modes = {"python": "FAST_COMPILE", **dict([next(iter(rivals.modes().items()))])}
    steps = rivals.agree(mlp.candidates(5, modes, None, sizes=(6, 8, 8, 3)))
    assert list(steps) == ["python", "synk"]


# --- crews -------------------------------------------------------------------------------------------

LEADER = """
import os, sys
sys.path.insert(0, {benchmarks!r})
import lines
weight = float(sys.argv[1])
if weight < 0:
    raise SystemExit("no such weight")
if weight == 0:
    lines.say(dict(ready=0))
    raise SystemExit("gone after a word")
lines.serve(lambda number: weight * number, [os.getpid()], ready=weight)
"""


@pytest.fixture
def leader(tmp_path):
    """A script whose losses are the numbers of the steps, times its argument."""
    path = tmp_path / "leader.py"
    path.write_text(LEADER.format(benchmarks=str(BENCHMARKS)))
    return str(path)


def test_crew_reports_means_over_its_leaders(module, leader):
    with module("lines").Crew([leader, "1"], [leader, "3"]) as crew:
        assert crew.ready() == 3
        assert crew.run(2).losses == [0, 2]
        block = crew.run(1)
    assert block.losses == [4]  # steps go on where they were
    assert block.seconds > 0
    assert len(block.peaks) == 2
    assert all(1e6 < peak < 1e9 for peak in block.peaks)


def test_leader_that_does_not_start_is_named(module, leader):
    with (
        module("lines").Crew([leader, "-1"]) as crew,
        pytest.raises(SystemExit, match="leader.py broke down"),
    ):
        crew.ready()


def test_crews_that_lose_otherwise_are_not_timed(module, capsys):
    resnet = module("resnet")
    losses = [7.0, 6.5, 6.0]
    resnet.check({"synk": losses, "torch": [loss * (1 + 0.9 * resnet.TOLERANCE) for loss in losses]})
    for wrong in ([7.0, 6.5, 6.01], [7.0, 6.5, float("nan")]):
        with pytest.raises(SystemExit, match="losses differ"):
            resnet.check({"synk": losses, "torch": wrong})


# --- scripts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "titles"),
    [
        (["linker.py", "--only", "adam", "dropout"], ["Adam, 2,000 parameters", "dropout applied, 25 × 80"]),
        (["densities.py"], ["eight schools", "AR(5)"]),
        pytest.param(
            ["products.py"],
            ["32x128x512 TN", "oneDNN × its clock"],
            marks=pytest.mark.skipif(not onednn.available(), reason=onednn.reason()),
        ),
        (["recurrent.py"], ["training", "lstm"]),
        (["fit.py"], ["synk, fit: ", "synk, Checkpoints"]),
        (["collectives.py"], ["median", "× in a step", "4 kB"]),
        pytest.param(
            ["resnet.py", "--only", "step"],
            ["ResNet-18, 64 × 64, batch 4", "peak memory of a rank"],
            marks=pytest.mark.soak,  # tests/demos trains it, and `check` and `Crew` are tested above
        ),
        (
            ["peers.py", "--only", "steps", "update"],
            ["batch 500, adam", "synk, shard=None", "10,000 parameters, 4 ranks", "memcpy of its bytes"],
        ),
        (["unet.py"], ["16 × 16, 4 images a step", "16 × 16, 8 images a step", "of the processor"]),
        (["variables.py"], ["broadcast, first", "restart"]),
    ],
    ids=lambda value: value[0],
)
def test_script_prints_its_tables(command, titles):
    printed = run(*command, "--quick", "--rounds", "2")
    assert [title for title in titles if title not in printed] == []


def run(script, *arguments):
    """Run a script, which must end well; return its output."""
    command = [sys.executable, "-W", "error", str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls_are_compared_with_another_checkout(module, monkeypatch):
    calls = module("calls")
    monkeypatch.setattr(
        calls,
        "run",
        lambda checkout, ranks: {"a call": 1e-5 if checkout == calls.HERE else 2e-5, calls.ROUND_TRIP: 4e-6},
    )
    options = calls.argparse.Namespace(ranks=2, rounds=3)
    table = calls.table({"here": calls.HERE, "there": Path("elsewhere")}, options, busy=False)
    assert "| a call" in table
    assert "0.50 (0.50–0.50)" in table
    assert "2.50" in table  # round trips


def test_every_kind_of_call_is_measured():
    script = f"import sys; sys.path[:0] = [{str(BENCHMARKS)!r}]; import calls, json; calls.CALLS = 3; "
    script += "print(json.dumps(calls.measured(2)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert all(seconds > 0 for seconds in json.loads(done.stdout).values())


# --- PyTensor's own benchmarks --------------------------------------------------------------------

SUITE = """
import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor import function

@pytest.mark.parametrize("mode", ["FAST_COMPILE", "CVM"])
def test_sum(mode, benchmark):
    x = pt.dvector("x")
    assert benchmark(function([x], x.sum(), mode=mode), np.ones(3)) == 3

def test_sum_numba(benchmark):
    test_sum("FAST_COMPILE", benchmark)

def test_sum_c(benchmark):
    raise AssertionError("its twin is enough")

def test_compilation(benchmark):
    benchmark(lambda: function([], pt.zeros(3), mode="FAST_COMPILE"))

def test_rounds_of_compilation(benchmark):
    benchmark.pedantic(lambda: None, rounds=2)

def test_what_fails(benchmark):
    raise ValueError("not here")
"""


def test_each_graph_of_a_suite_is_measured_once_in_each_mode(tmp_path):
    folder = tmp_path / "tests" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "test_sums.py").write_text(SUITE)
    report = tmp_path / "report.json"
    printed = run("pytensor_bench.py", str(tmp_path), "--modes", "synk", "c", "--report", str(report))
    (line,) = report.read_text().splitlines()
    found = json.loads(line)
    assert found["name"] == "sums: sum[FAST_COMPILE]"
    assert found["notes"] == {}
    assert {mode: len(times) for mode, times in found["seconds"].items()} == {"synk": 15, "c": 15}
    assert [line for line in printed.splitlines() if "FAILED" in line] == [
        "FAILED tests/benchmarks/test_sums.py::test_what_fails - ValueError: not here"
    ]
    assert "× c: geometric mean" in printed.splitlines()[-1]
