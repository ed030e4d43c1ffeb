"""The options of a fork on GPUs: recorded launches, precision. As training on cores."""

import pytest

from support.gpu.stage import check

# TF32 and float16 round to 10 bits, bfloat16 to 7. Adam divides gradients by their size, so those near 0 take
# roundings to steps: on the stand-in, losses are up to 3e-3 off with TF32, and 3e-2 with bfloat16.
ROUNDED = {"tf32": 1e-2, "float16": 1e-2, "bfloat16": 8e-2}


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_recorded_launches(gpu_stage, on_cores, n_ranks):
    found = gpu_stage.play("perceptron", n_ranks=n_ranks, n_steps=12, cuda_graphs=True)
    check(found, on_cores("perceptron", n_steps=12), n_ranks, rtol=1e-4)
    assert found["recorded"], "nothing was recorded"


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("network", ["perceptron", "digit_filters"])
def test_precision(gpu_stage, on_cores, network, precision):
    found = gpu_stage.play(network, n_ranks=1, precision=precision)
    check(found, on_cores(network), 1, rtol=ROUNDED[precision])
