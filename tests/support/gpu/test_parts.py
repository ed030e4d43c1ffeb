"""What runs the tests of a GPU, and its report: on files of tests made here, without a GPU."""

import importlib
import json
import re
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from support.gpu import report as gpu_report
from support.gpu.parts import Part, Pool, name_of, read

TESTS = {
    "good": "def test_one(): pass\ndef test_two(): pytest.skip('no use')",
    "bad": "def test_one(): assert 1 == 2\ndef test_two(broken): pass",
    "stuck": "def test_one(): pass\ndef test_two(): time.sleep(60)\ndef test_three(): pass",
    "dying": "def test_one(): os.kill(os.getpid(), 9)",
    "late": "def test_one(): pass",
}
LIMIT = 15  # seconds, of which pytest may need several to start
HEADER = "import os, time, pytest\npytestmark = pytest.mark.gpu\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run the files, one at a time; the last one comes too late."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    parts = []
    for name, text in TESTS.items():
        file = folder / f"test_{name}.py"
        file.write_text(HEADER + text)
        tests = [f"test_{name}.py::{line.split('(')[0].removeprefix('def ')}" for line in text.splitlines()]
        arguments = [str(file), f"--rootdir={folder}", "-c", str(folder / "pytest.ini")]
        parts.append(Part(name_of(file), tests, arguments, folder / f"{name}.jsonl"))
    done = []
    early, last = parts[:-1], parts[-1:]
    Pool(2, time.monotonic() + 60, limit=LIMIT, done=done.append).run(early)
    Pool(1, time.monotonic() - 1, limit=LIMIT, done=done.append).run(last)
    assert sorted(part.name for part in done) == sorted(TESTS)
    return {part.name: part.result() for part in parts}


@pytest.mark.slow
def test_outcomes_are_counted(results):
    assert results["good"]["counts"] == {"passed": 1, "skipped": 1}
    assert results["good"]["failures"] == []
    assert "no use" in results["good"]["skips"][0]
    assert results["bad"]["counts"] == {"failed": 1, "broken": 1}
    assert "assert 1 == 2" in results["bad"]["failures"][0]["said"]


@pytest.mark.slow
def test_who_hangs_or_dies_is_named_and_what_came_after_counts_as_not_run(results):
    assert results["stuck"]["counts"] == {"passed": 1, "unfinished": 1, "not run": 1}
    assert results["stuck"]["failures"][0]["test"].endswith("test_two")
    assert f"ended after {LIMIT} s" in results["stuck"]["failures"][0]["said"]
    assert results["stuck"]["seconds"] < 2 * LIMIT
    assert results["dying"]["counts"] == {"unfinished": 1}
    assert "ended with status -9" in results["dying"]["failures"][0]["said"]


@pytest.mark.slow
def test_what_never_began_is_not_run(results):
    assert results["late"]["counts"] == {"not run": 1}
    assert "out of time" in results["late"]["failures"][0]["said"]


def test_a_note_that_was_cut_off_is_left_out(tmp_path):
    notes = tmp_path / "notes"
    notes.write_text('{"test": "a", "outcome": "begun"}\n{"test": "a", "outc')
    assert read(notes) == [{"test": "a", "outcome": "begun"}]
    assert read(tmp_path / "none") == []


FACTS = {"device": "NVIDIA H200, 141 GiB", "missing": "", "CuPy": "14.2.0"}


FAILURE = "def f():\nE  assert 1 == `2`\nx.py:3"
RESULTS = {
    "name": "reduce",
    "seconds": 3.0,
    "counts": {"passed": 3, "failed": 1, "skipped": 1},
    "failures": [{"test": "test_reduce.py::test_sum", "outcome": "failed", "said": FAILURE}],
    "skips": ["Skipped: no use"],
}


FIGURES = {
    "mlp": {
        "title": "MNIST perceptron",
        "what": "a step beside torch",
        "asked": "≥ 2",
        "measured": "2.10 (2.00 to 2.20), synk",
        "met": "yes",
        "seconds": 3.0,
        "note": "batch 250, *20* rounds_.",
        "columns": ["candidate", "a step"],
        "rows": [["synk", "1 ms"], ["torch eager", "2 ms"]],
    },
    "resnet": {
        "title": "ResNet-50",
        "what": "images/s beside torch",
        "asked": "≥ 1",
        "measured": "not measured",
        "met": "no",
        "seconds": 1.0,
        "error": "exit status 1: no `memory`",
    },
}


def test_report_of_a_gpu_goes_to_the_page(tmp_path):
    tests = {"facts": FACTS, "ended": True, "seconds": 9.0, "parts": {"a": RESULTS, "b": RESULTS}}
    page = written(tmp_path, tests, {"facts": FACTS, "ended": True, "parts": FIGURES})
    assert page.splitlines()[:2] == ["Seen on NVIDIA H200, 141 GiB", "=" * 28]
    for text in (
        "torch eager 2 ms",
        "a step beside torch ≥ 2 2.10 (2.00 to 2.20), synk yes",
        "images/s beside torch ≥ 1 not measured no",
        "tests marked gpu all pass 6 of 10, 2 skipped no",
        "tests and figures in 480 s 13 s yes",
        "**ResNet-50**: not measured",
        "no 'memory'",
        "assert 1 == '2'",
        "no use",
    ):
        assert text in re.sub(" +", " ", page)  # columns are as wide as they need
    assert "cut off" not in page
    assert "all       6       2" in page
    assert not (tmp_path / "notes" / "report.rst").exists()
    if find_spec("docutils"):
        core = importlib.import_module("docutils.core")
        core.publish_string(page, settings_overrides={"halt_level": 2, "report_level": 2})


def test_report_of_what_was_cut_off_says_so(tmp_path):
    tests = {"facts": FACTS, "ended": False, "seconds": 9.0, "parts": {"a": RESULTS}}
    page = written(tmp_path, tests, None)
    assert "``make gpu-test`` was cut off" in page
    assert "``make gpu-bench``" not in page.partition("cut off")[2]


def test_who_is_ended_while_writing_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "tests.json"
    gpu_report.save(file, {"parts": {}})
    monkeypatch.setattr(gpu_report.os, "replace", lambda source, to: None)
    gpu_report.save(file, {"parts": {"more": 1}})
    assert gpu_report.load(file) == {"parts": {}}


def test_report_without_a_gpu_says_so_and_leaves_the_page_alone(tmp_path):
    facts = {"device": "", "missing": "ModuleNotFoundError: No module named 'cupy'"}
    tests = {"facts": facts, "ended": True, "seconds": 1.0, "parts": {}}
    assert written(tmp_path, tests, None) is None
    page = (tmp_path / "notes" / "report.rst").read_text()
    assert page.startswith("No GPU\n======")
    assert "No module named 'cupy'" in page


def written(folder, tests, bench):
    """Write the report as the targets do; return the page in docs, if there is one."""
    notes, to = folder / "notes", folder / "docs" / "gpu_report.rst"
    notes.mkdir()
    for name, found in {"tests": tests, "bench": bench}.items():
        if found:
            (notes / f"{name}.json").write_text(json.dumps(found))
    command = [sys.executable, gpu_report.__file__, "--notes", str(notes), "--to", str(to)]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    return to.read_text() if to.exists() else None
