"""The comparison of ways to sample PyMC's models: arithmetic, cells that go wrong, and a small run."""

import argparse
import sys

import numpy as np
import pytest

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

QUICK = argparse.Namespace(draws=10, tune=10, chains=1, seconds=120)


@pytest.fixture
def bench(module):
    return module("pymc_models")


def posterior(mean, error):
    timed = {"ess": 10.0, "step": 7.0, "seconds": 3.0, "steps": 200.0}
    return {"means": {"a": [0.0, mean]}, "errors": {"a": [0.1, error]}, **timed}


def test_differences_of_means_are_in_standard_errors(bench):
    assert bench.furthest(posterior(1.0, 0.3), posterior(0.0, 0.4)) == pytest.approx(2)
    assert bench.furthest(posterior(1.0, 0.3), {"means": {}, "errors": {}}) == 0


def test_a_row_marks_what_is_too_far_and_says_what_failed(bench):
    cells = {"cold": {"seconds": 2.0}, "warm": "> 900 s", "gradient": {"microseconds": 5.4}}
    far = {**cells, "posterior": posterior(3.0, 0.3)}
    far["all in"] = bench.all_in(far)
    assert bench.in_words(far, posterior(0.0, 0.4)) == ["2.0", "> 900 s", "5", "7", "40", "10", "6.0 !"]
    assert bench.in_words({**far, "posterior": "failed"}, posterior(0.0, 0.4))[-1] == "-"
    assert bench.in_words(far, "failed")[-1] == "-"


def test_geometric_means_are_of_models_that_both_have_done(bench):
    def cells(cold, step):
        made = {"cold": cold, "posterior": {**posterior(0, 1), "step": step}}
        return {**made, "all in": bench.all_in(made)}

    found = {("a", "synk"): cells({"seconds": 1.0}, 1.0), ("a", "nutpie"): cells({"seconds": 13.0}, 4.0)}
    found |= {("b", "synk"): cells({"seconds": 1.0}, 1.0), ("b", "nutpie"): cells({"seconds": 1.0}, 1.0)}
    found |= {("c", "synk"): cells("failed", 1.0), ("c", "nutpie"): cells({"seconds": 1.0}, 9.0)}
    assert bench.means(found, "synk") == ["2", "2.00", "2.00"]


def test_a_cell_that_hangs_or_fails_costs_its_limit_alone(bench, tmp_path, capsys):
    hasty = argparse.Namespace(**{**vars(QUICK), "seconds": 0.5})
    assert bench.in_a_process("cold", "synk", "schools", str(tmp_path), hasty) == "> 0.5 s"
    assert bench.in_a_process("cold", "no way", "schools", str(tmp_path), QUICK) == "failed"
    assert "KeyError: 'no way'" in capsys.readouterr().err


def test_a_small_run_fills_all_cells(bench, tmp_path):
    found = {cell: bench.in_a_process(cell, "synk", "schools", str(tmp_path), QUICK) for cell in bench.CELLS}
    assert found["cold"]["seconds"] > 0
    assert found["gradient"]["microseconds"] > 0
    assert found["posterior"]["ess"] > 0
    assert found["posterior"]["step"] > 0
    assert np.shape(found["posterior"]["means"]["offset"]) == (8,)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["schools", "glm_1k", "ordinal", "inflated", "mixture", "ar5", "garch"])
def test_all_ways_evaluate_a_model(bench, name):
    model = bench.built(bench.MODELS[name])
    for way in ("synk", "nutpie", "c"):
        bench.gradient_of(way, model)()
