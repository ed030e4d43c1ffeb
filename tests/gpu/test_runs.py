"""Whole runs on a GPU: CUDA after the fork, one rank and two on one GPU, every collective verb."""

import numpy as np
import pytest

SLOW = pytest.mark.soak
DTYPES = ["float32", *(pytest.param(dtype, marks=SLOW) for dtype in ("float64", "float16", "int32"))]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_ranks_fork_first_and_use_cuda_then(stage, n_ranks):
    found = stage.play("compute", n_ranks=n_ranks)
    assert found["before"] == [False]
    assert found["forked"] == n_ranks
    assert found["drivers"] == [stage.is_gpu] * n_ranks
    assert found["total"] == pytest.approx(5, rel=1e-12)
    assert found["error"] < 1e-12
    assert found["values"] == [[1, 3, 5]] * n_ranks
    assert found["after"] == "numpy"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_ranks", [pytest.param(1, marks=SLOW), 2])
def test_every_verb_finds_what_programs_left_on_the_device(stage, n_ranks, dtype):
    found = stage.play("verbs", n_ranks=n_ranks, dtype=dtype)
    once = 8.0 * n_ranks if n_ranks > 1 else 8.0  # doubled thrice, summed over ranks
    pair = np.array([once, 2 * once])
    assert found == {
        "gather": [[2, 4]] * n_ranks,
        "all_reduce": [(pair / 2).tolist()] * n_ranks,
        "reduce": pair.tolist(),
        "broadcast": [(2 * pair).tolist() if n_ranks > 1 else [2, 2]] * n_ranks,
        "scatter": [0, 2, 4, 6],
        "all_gather": [[0, 4, 8, 12]] * n_ranks,
    }


def test_one_rank_restarts_and_a_second_fork_is_refused(gpu_stage):
    found = gpu_stage.play("restarts")
    assert found["value"] == [2]
    assert found["refused"]


def test_float32_products_are_float32_unless_asked_otherwise(gpu_stage):
    errors = {precision: gpu_stage.play("product", precision=precision) for precision in ("float32", "tf32")}
    assert errors["float32"] < 5e-6
    assert 1e-5 < errors["tf32"] < 5e-3
