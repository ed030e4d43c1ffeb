/* What every file of kernels starts with. Before it stand, for the dtype of the arrays, STORED as the type of an
   element in memory, REAL as the type to compute in, EXP as a function of that, and WIDEN and NARROW: how
   STORED becomes REAL, and REAL STORED; and VECTOR, the number of elements that one instruction reads or writes.
   If that is not 1, rows are multiples of it and start at 16 bytes.

   All arrays are C-contiguous, and no result is an input. Sums have a fixed order, that of the launch's shape, so
   that the same input gives the same bits. */

#define INLINE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(256)

typedef long long Length;

enum {
    THREADS = 256, /* in a block, at most */
    LANES = 32,
    V = VECTOR,
    ROWS = 4, /* packs that a thread asks memory for at once, and adds up in REAL; such chunks add up in double */
};

#define ALL_LANES 0xffffffffu

/* The numbers of 16 bits are taken as bits: no header of CUDA need be installed. */
struct Half {
    unsigned short bits;
};
struct Brain {
    unsigned short bits;
};

INLINE REAL same(REAL x)
{
    return x;
}

INLINE float from_half(Half x)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
}

INLINE Half to_half(float value)
{
    Half x;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x.bits) : "f"(value));
    return x;
}

INLINE float from_brain(Brain x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

/* The nearest, of two that are as near the even one. */
INLINE Brain to_brain(float value)
{
    Brain x;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x.bits) : "f"(value));
#else /* older GPUs have no instruction */
    const unsigned bits = __float_as_uint(value), nearest = bits + 0x7fff + (bits >> 16 & 1);
    x.bits = value == value ? nearest >> 16 : 0x7fff;
#endif
    return x;
}

/* V elements that are read or written by one instruction. */
template <class T> struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Pack {
    T item[V];
};

INLINE void load(const STORED *from, REAL *to)
{
    const Pack<STORED> pack = *(const Pack<STORED> *)from;
#pragma unroll
    for (int v = 0; v < V; v++)
        to[v] = WIDEN(pack.item[v]);
}

INLINE void store(const REAL *from, STORED *to)
{
    Pack<STORED> pack;
#pragma unroll
    for (int v = 0; v < V; v++)
        pack.item[v] = NARROW(from[v]);
    *(Pack<STORED> *)to = pack;
}

/* Parameters of the elements of a pack, or of one; nobody says where they start. */
template <int N> INLINE void load_parameters(const REAL *from, REAL (&to)[N])
{
    if (N == V && (unsigned long long)from % alignof(Pack<REAL>) == 0) {
        const Pack<REAL> pack = *(const Pack<REAL> *)from;
#pragma unroll
        for (int n = 0; n < N; n++)
            to[n] = pack.item[n];
    } else {
#pragma unroll
        for (int n = 0; n < N; n++)
            to[n] = from[n];
    }
}

/* What N channels are normalised by: (x - centre) * scale + shift. */
template <int N>
INLINE void load_affine(const REAL *gamma, const REAL *beta, const REAL *mean, const REAL *inv_std, Length channel,
                        REAL (&centre)[N], REAL (&scale)[N], REAL (&shift)[N])
{
    REAL over[N];
    load_parameters(mean + channel, centre);
    load_parameters(inv_std + channel, over);
    load_parameters(gamma + channel, scale);
    load_parameters(beta + channel, shift);
#pragma unroll
    for (int n = 0; n < N; n++)
        scale[n] *= over[n];
}

INLINE Length shorter(Length a, Length b)
{
    return a < b ? a : b;
}

INLINE REAL infinity()
{
    return __int_as_float(0x7f800000);
}

INLINE REAL not_a_number()
{
    return __int_as_float(0x7fc00000);
}

/* Two sums that are formed together. */
struct Sums {
    double first, second;
};

INLINE Sums merged(Sums a, Sums b)
{
    return {a.first + b.first, a.second + b.second};
}

/* Merge N sums of the threads of each column of the block, over threadIdx.y; row 0 gets the results. The number of
   rows is a power of two, and `shared` is used once. */
template <int N> INLINE void merge_block(Sums (&mine)[N], Sums (&shared)[N][THREADS])
{
    const int here = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int n = 0; n < N; n++)
        shared[n][here] = mine[n];
    __syncthreads();
    for (int half = blockDim.y / 2; half; half /= 2) {
        if (threadIdx.y < half) {
#pragma unroll
            for (int n = 0; n < N; n++)
                shared[n][here] = mine[n] = merged(mine[n], shared[n][here + half * blockDim.x]);
        }
        __syncthreads();
    }
}

/* Merge what the lanes of a warp have; the result is that of lane 0. */
INLINE Sums merge_warp(Sums mine)
{
    for (int by = LANES / 2; by; by /= 2) {
        const Sums other = {__shfl_down_sync(ALL_LANES, mine.first, by), __shfl_down_sync(ALL_LANES, mine.second, by)};
        mine = merged(mine, other);
    }
    return mine;
}

/* The sums over all threads of a block of one row, for each of them; `shared` has a place for each warp. */
INLINE Sums sum_block(Sums mine, Sums *shared)
{
    const int warps = blockDim.x / LANES;
    mine = merge_warp(mine);
    if (threadIdx.x % LANES == 0)
        shared[threadIdx.x / LANES] = mine;
    __syncthreads();
    Sums total = shared[0];
    for (int warp = 1; warp < warps; warp++)
        total = merged(total, shared[warp]);
    __syncthreads();
    return total;
}

/* What part of a split's rows is a thread's: rows from + threadIdx.y, and every blockDim.y-th after it. */
struct Rows {
    Length from, to;
};

INLINE Rows rows_of_split(Length rows)
{
    const Length each = (rows + gridDim.y - 1) / gridDim.y, from = shorter(rows, blockIdx.y * each);
    return {from, shorter(rows, from + each)};
}
