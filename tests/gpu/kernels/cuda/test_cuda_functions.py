"""The CUDA files as text, the shapes of launches, and the choice of the provider."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cuda import provider as cuda_provider
from support.cuda.nvrtc import compile_cuda
from support.cupy import stand_in
from synk.gpu.kernels.cuda import CudaKernels, launch
from synk.gpu.kernels.cuda.cuda_functions import FILES, INDICES, KINDS, PLACES, kind_of, source
from synk.ops.kernels import choose
from synk.ops.kernels.loops import LoopKernels
from synk.ops.kernels.plain_norm import PlainNorm
from synk.ops.kernels.plain_pool import PlainPool

counts = st.integers(1, 10**9)

KERNELS = {
    "batch_norm": ["moments", "normalise", "products", "differentiate", "statistics", "totals"],
    "cross_entropy": ["losses_of", "differentiate"],
    "layer_norm": ["normalise", "differentiate", "products", "totals"],
    "pool": ["max_pool", "max_pool_gradient", "avg_pool", "avg_pool_gradient", "column_means", "plane_means"],
    "residual": ["normalise_and_add", "masked_products"],
}


def texts(file, dtype):
    """Return the forms of a file, by macros: all of float32, those with each value once of others."""
    vectors, forms = (KINDS[dtype].vector, 1), FORMS.get(file, [{}, {}])
    pairs = product(vectors, forms) if dtype == "float32" else zip(vectors, forms, strict=True)
    return [source(file, dtype, VECTOR=vector, **macros) for vector, macros in pairs]


# Of pooling, each width of places and of counts once.
FORMS = {
    "batch_norm": [{"PLANES": "false"}, {"PLANES": "true"}],
    "pool": [{"PLACE": PLACES[p], "INDEX": INDICES[wide]} for p, wide in (("uint8", False), ("int32", True))],
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("dtype", KINDS)
def test_nvrtc_compiles(file, dtype):
    for text in texts(file, dtype):
        code = compile_cuda(text)
        assert all(f".text.{name}\0".encode() in code for name in KERNELS[file])


def test_cupy_gets_cuda_and_no_other_module_does():
    assert type(choose.pooling_kernels(np, "float32")) is LoopKernels
    for xp, pool, norm in (
        (cuda_provider.CUPY, CudaKernels, CudaKernels),
        (stand_in, PlainPool, PlainNorm),
    ):
        assert type(choose.pooling_kernels(xp, "float32")) is pool
        assert type(choose.norm_kernels(xp, "float32")) is norm


@given(counts, st.sampled_from([1, 2, 4, 8]))
def test_columns_fill_a_block(columns, vector):
    (across, down), blocks = launch.column_blocks(columns, vector)
    assert across * down == launch.THREADS
    assert across <= launch.LANES
    assert (blocks - 1) * across * vector < columns <= blocks * across * vector
    assert blocks == 1 or across == launch.LANES


@given(counts, counts)
def test_no_more_parts_than_steps_or_than_a_gpu_has_blocks(blocks, steps):
    parts = launch.splits(blocks, steps)
    assert 1 <= parts <= steps
    assert parts == 1 or parts < launch.PARTS / blocks + 1


@given(counts, st.sampled_from([1, 2, 4, 8]))
def test_a_row_has_whole_warps(width, vector):
    threads = launch.row_threads(width, vector)
    assert threads % launch.LANES == 0
    assert launch.LANES <= threads <= launch.THREADS


def test_other_dtypes_go_to_array_operations():
    assert kind_of(np.ones(3, "float32")) is KINDS["float32"]
    assert kind_of(np.ones(3, "int32")) is kind_of(np.ones(0, "float32")) is None
    x = np.arange(12).reshape(1, 2, 3, 2).astype("complex64")
    y = cuda_provider.OnHost().global_avg_pool("NHWC")(x)
    np.testing.assert_allclose(y, x.mean((1, 2)))
