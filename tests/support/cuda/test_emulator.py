"""The emulator of CUDA: that it runs what a GPU runs, and refuses what would be wrong there."""

import numpy as np
import pytest

from support.cuda import emulator as cuda_emulator
from support.cuda.emulator import LaunchError, Race, RawModule
from support.cupy import stand_in

pytestmark = pytest.mark.skipif(not cuda_emulator.available(), reason="there is no g++")

SUMS = r"""
__device__ __forceinline__ float warp_sum(float x) {
    for (int by = 16; by; by /= 2) x += __shfl_down_sync(0xffffffff, x, by);
    return x;
}
extern "C" __global__ void __launch_bounds__(128) sums(const float *__restrict__ x, float *y, int n) {
    __shared__ float of_warps[4];
    float total = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) total += x[blockIdx.x * n + i];
    total = warp_sum(total);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
    BARRIER
    if (threadIdx.x == 0) y[blockIdx.x] = (of_warps[0] + of_warps[1]) + (of_warps[2] + of_warps[3]);
}
"""


def on_device(*shape, dtype="float32"):
    return stand_in.ndarray(np.random.default_rng(0).normal(size=shape).astype(dtype))


def launch(body, *args, parameters="float *x", grid=(1,), block=(64,)):
    code = f'extern "C" __global__ void __launch_bounds__(64) f({parameters}) {{ {body} }}'
    RawModule(code=code).get_function("f")(grid, block, args)


def test_a_missing_barrier_is_a_race():
    kernel = RawModule(code=SUMS, options=("-DBARRIER=",)).get_function("sums")
    with pytest.raises(Race, match="order of threads"):
        kernel((5,), (128,), (on_device(5, 300), on_device(5), np.int32(300)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x[64 + threadIdx.x] = 0;", "beyond an array"),
        ("x[threadIdx.x] = x[(int)threadIdx.x - 1];", "order of threads"),
        ("if (threadIdx.x < 40) __shfl_xor_sync(0xffffffff, 1, 1);", "waits at a shuffle"),
        ("if (threadIdx.x) __syncthreads(); else __shfl_xor_sync(0xffffffff, 1, 1);", "never come there"),
        ("x[0] = threadIdx.x;", "order of threads"),
        ("__shared__ float s[64]; x[threadIdx.x] = s[threadIdx.x];", "not written"),
        ("x[threadIdx.x] = __shfl_xor_sync(0xff, 1, 8);", "mask"),
        ("struct alignas(8) Two { float a, b; }; ((Two *)(x + 1))->b = 0;", "not aligned"),
    ],
)
def test_wrong_kernels_are_refused(body, message):
    with pytest.raises(LaunchError, match=message):
        launch(body, on_device(64))
    x = on_device(64)
    launch("x[threadIdx.x] = 1;", x)  # and does no harm to the next launch
    assert (x.get() == 1).all()


@pytest.mark.parametrize(
    ("args", "parameters"),
    [
        ((np.ones(4, "float32"),), "float *x"),
        ((stand_in.ndarray(np.ones(4)),), "float *x"),
        ((stand_in.ndarray(np.ones(4, "int32")),), "float *x"),
        ((3,), "int n"),
        ((np.int32(3),), "long long n"),
        ((np.float64(3),), "float x"),
        ((1.5,), "long long n"),
        ((), "float *x"),
        (("x",), "float *x"),
        (([1],), "long long n"),
    ],
)
def test_arguments_that_a_kernel_would_misread_are_refused(args, parameters):
    with pytest.raises(TypeError):
        launch("", *args, parameters=parameters)
