"""The emulator of CUDA: that it runs what a GPU runs, and refuses what would be wrong there."""

import numpy as np
import pytest

from support.cuda import emulator as cuda_emulator
from support.cuda.emulator import CompileError, LaunchError, Race, RawKernel, RawModule
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


def launch(body, *args, parameters="float *x", grid=(1,), block=(64,), shared_mem=0, before="", bound=64):
    kernel = f"__global__ void __launch_bounds__({bound}) f({parameters})"
    code = f'{before}\nextern "C" {kernel} {{ {body} }}'
    RawKernel(code, "f")(grid, block, args, shared_mem=shared_mem)


def test_shuffles_barriers_and_shared_memory():
    x, y = on_device(5, 300), on_device(5)
    module = RawModule(code=SUMS, options=("-DBARRIER=__syncthreads();",))
    module.get_function("sums")((5,), (128,), (x, y, np.int32(300)))
    np.testing.assert_allclose(y.get(), x.get().sum(1), rtol=1e-5)


def test_a_missing_barrier_is_a_race():
    kernel = RawKernel(SUMS, "sums", options=("-DBARRIER=",))
    with pytest.raises(Race, match="order of threads"):
        kernel((5,), (128,), (on_device(5, 300), on_device(5), np.int32(300)))


def test_all_shuffles():
    body = """
        const int i = threadIdx.x;
        const unsigned all = 0xffffffff;
        y[i] = __shfl_sync(all, x[i], 3) + 10 * __shfl_sync(all, x[i], 1, 8);
        y[64 + i] = __shfl_up_sync(all, x[i], 2) + 100 * __shfl_down_sync(all, x[i], 4, 16);
        y[128 + i] = __shfl_xor_sync(all, x[i], 5) + 1000 * __popc(__ballot_sync(all, i % 3 == 0));
        y[192 + i] = __any_sync(all, i == 40) + 2 * __all_sync(all, i < 40);
    """
    x, y = stand_in.ndarray(np.arange(64)), stand_in.ndarray(np.zeros(256, "int64"))
    launch(body, x, y, parameters="const long *x, long *y")
    i = np.arange(64)
    lane, warp = i % 32, i // 32 * 32
    expected = [
        warp + 3 + 10 * (i // 8 * 8 + 1),
        np.where(lane >= 2, i - 2, i) + 100 * np.where(lane % 16 + 4 < 16, i + 4, i),
        (i ^ 5) + 11000,
        (i >= 32) + 2 * (i < 32),
    ]
    np.testing.assert_array_equal(y.get(), np.concatenate(expected))


def test_atomics_of_integers_are_the_same_in_any_order_and_those_of_floats_are_not():
    counts = stand_in.ndarray(np.zeros(3, "int32"))
    launch("atomicAdd(x + threadIdx.x % 3, 1);", counts, parameters="int *x", grid=(2,))
    assert counts.get().tolist() == [44, 42, 42]
    with pytest.raises(Race):
        launch("atomicAdd(x, expf(0.3f * threadIdx.x));", on_device(1))


def test_indices_in_three_dimensions_and_dynamic_shared_memory():
    body = """
        extern __shared__ int places[];
        const int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        const int n = blockDim.x * blockDim.y * blockDim.z;
        places[n - 1 - t] = t;
        __syncthreads();
        x[(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) * n + t] = places[t];
    """
    x = stand_in.ndarray(np.zeros(24 * 30, "int32"))
    launch(body, x, parameters="int *x", grid=(2, 3, 4), block=(5, 3, 2), shared_mem=120)
    np.testing.assert_array_equal(x.get(), np.tile(np.arange(30)[::-1], 24))


def test_half_precision():
    body = """
        const int i = threadIdx.x;
        h[i] = __float2half(x[i]);
        b[i] = __float2bfloat16(x[i]);
        float back;
        asm("cvt.f32.f16 %0, %1;" : "=f"(back) : "h"(__half_as_ushort(h[i])));
        x[i] = back - (float)h[i];
    """
    x, h = on_device(64), on_device(64, dtype="float16")
    b = stand_in.ndarray(np.zeros(64, "uint16"))
    before = x.get()
    parameters = "float *x, __half *h, __nv_bfloat16 *b"
    launch(body, x, h, b, parameters=parameters, before="#include <cuda_fp16.h>\n#include <cuda_bf16.h>")
    np.testing.assert_array_equal(h.get(), before.astype("float16"))
    rounded = (b.get().astype("uint32") << 16).view("float32")
    np.testing.assert_allclose(rounded, before, rtol=2**-8)
    assert (x.get() == 0).all()


def test_templates_are_found_by_their_expressions():
    code = "template <class T> __global__ void twice(T *x) { x[threadIdx.x] *= 2; }"
    module = RawModule(code=code, name_expressions=["twice<float>", "twice<double>"])
    for dtype, kind in (("float32", "float"), ("float64", "double")):
        x = on_device(4, dtype=dtype)
        before = x.get()
        module.get_function(f"twice<{kind}>")((1,), (4,), (x,))
        np.testing.assert_array_equal(x.get(), 2 * before)
    with pytest.raises(LaunchError, match="not found"):
        module.get_function("twice<int>")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x[64 + threadIdx.x] = 0;", "beyond an array"),
        ("x[threadIdx.x] = x[(int)threadIdx.x - 1];", "order of threads"),
        ("if (threadIdx.x < 40) __shfl_xor_sync(0xffffffff, 1, 1);", "waits at a shuffle"),
        ("if (threadIdx.x) __syncthreads(); else __syncwarp();", "never come there"),
        ("x[0] = threadIdx.x;", "order of threads"),
        ("__shared__ float s[64]; x[threadIdx.x] = s[threadIdx.x];", "not written"),
        ("x[threadIdx.x] = __shfl_sync(0xff, 1, 9);", "mask"),
        ("struct alignas(8) Two { float a, b; }; ((Two *)(x + 1))->b = 0;", "not aligned"),
    ],
)
def test_what_is_wrong_is_found(body, message):
    with pytest.raises(LaunchError, match=message):
        launch(body, on_device(64))
    x = on_device(64)
    launch("x[threadIdx.x] = 1;", x)  # and does no harm to the next launch
    assert (x.get() == 1).all()


def test_threads_may_end_before_others_wait():
    x = on_device(64)
    launch("if (threadIdx.x > 9) return; __syncthreads(); x[threadIdx.x] = 1;", x)
    assert (x.get()[:10] == 1).all()


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


def test_numbers_that_it_reads_are_taken():
    x = stand_in.ndarray(np.zeros(4))
    body = "x[0] = a; x[1] = b; x[2] = c; x[3] = d + (nothing == 0);"
    parameters = "double *x, long long a, double b, int c, bool d, float *nothing"
    launch(body, x, 7, 0.5, np.int32(-3), np.bool_(True), None, parameters=parameters, block=(1,))
    assert x.get().tolist() == [7, 0.5, -3, 2]


def test_launches_have_limits_and_signatures():
    kernel = RawKernel('extern "C" __global__ void f() {}', "f")
    kernel((1,), (1024,), ())
    for grid, block in (((1,), (1025,)), ((1, 65536), (1,)), ((1,), (32, 64)), ((1,), (1, 1, 65))):
        with pytest.raises(LaunchError, match="INVALID"):
            kernel(grid, block, ())
    with pytest.raises(LaunchError, match="INVALID"):
        launch("", parameters="", block=(65,), bound=64)
    with pytest.raises(LaunchError, match="shared"):
        kernel((1,), (1,), (), shared_mem=50000)
    for grid, block in ((1, (1,)), ((1,), [1])):
        with pytest.raises(TypeError, match="expected tuple"):
            kernel(grid, block, ())
    with pytest.raises(TypeError):
        RawModule("code")
    with pytest.raises(TypeError, match="expected tuple"):
        RawModule(code="", options=["-std=c++17"])


def test_what_is_no_cuda_is_not_compiled():
    with pytest.raises(CompileError, match="nothing"):
        RawKernel('extern "C" __global__ void f(float *x) { *x = nothing; }', "f").compile()
    with pytest.raises(LaunchError, match='extern "C"'):
        RawModule(code="__global__ void f() {}").get_function("f")


def test_arrays_may_overlap():
    x = on_device(64)
    before = x.get()
    launch("y[threadIdx.x] = 2 * x[threadIdx.x];", x, x, parameters="const float *x, float *y")
    np.testing.assert_array_equal(x.get(), 2 * before)
    launch("y[threadIdx.x] = x[threadIdx.x];", x[:32], x[32:], parameters="float *x, float *y", block=(32,))
    np.testing.assert_array_equal(x.get()[32:], 2 * before[:32])
