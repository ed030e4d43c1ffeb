"""The page of what tests and benchmarks of a GPU found: from notes made here, without a GPU."""

import importlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_report.py"

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
    command = [sys.executable, str(SCRIPT), "--notes", str(notes), "--to", str(to)]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    return to.read_text() if to.exists() else None
