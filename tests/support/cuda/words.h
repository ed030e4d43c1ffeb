/* The functions and types that CUDA brings, on the fibers of emulator.h. */

namespace emulated {

/* Atomic operations: of fibers, none runs between the reading and the writing. */
template <class T, class F> static T exchanged(T *place, F change)
{
    const T old = *place;
    *place = change(old);
    return old;
}

static float half_to_float(unsigned short bits)
{
    _Float16 half;
    memcpy(&half, &bits, 2);
    return half;
}
static unsigned short float_to_half(float value)
{
    _Float16 half = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &half, 2);
    return bits;
}
static float brain_to_float(unsigned short bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static unsigned short float_to_brain(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, 4);
    return value != value ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
}

/* By what a text's own PTX is replaced: one name for each instruction. */
static void cvt_f32_f16(float &to, unsigned short from) { to = half_to_float(from); }
static void cvt_rn_f16_f32(unsigned short &to, float from) { to = float_to_half(from); }
static void cvt_f32_bf16(float &to, unsigned short from) { to = brain_to_float(from); }
static void cvt_rn_bf16_f32(unsigned short &to, float from) { to = float_to_brain(from); }

} // namespace emulated

static inline void __syncthreads() { emulated::wait(emulated::AT_BARRIER); }
static inline void __syncwarp(unsigned mask = ~0u) { emulated::exchange(mask, 0, emulated::lane()); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

template <class T> static T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    return emulated::exchange(mask, value, (emulated::lane() & ~(width - 1)) + (source & (width - 1)));
}
template <class T> static T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const int lane = emulated::lane();
    return emulated::exchange(mask, value, (lane & (width - 1)) + (int)by < width ? lane + (int)by : lane);
}
template <class T> static T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const int lane = emulated::lane();
    return emulated::exchange(mask, value, (lane & (width - 1)) >= (int)by ? lane - (int)by : lane);
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32)
{
    const int lane = emulated::lane(), other = lane ^ by;
    return emulated::exchange(mask, value, (other & ~(width - 1)) <= (lane & ~(width - 1)) ? other : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned votes = 0;
    const unsigned mine = predicate ? 1u << emulated::lane() : 0;
    const int me = emulated::now, slot = emulated::fibers[me].turn & 1;
    emulated::exchange(mask, (uint64_t)mine, emulated::lane());
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1)
            votes |= (unsigned)emulated::fibers[(me & ~31) + lane].given[slot];
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

template <class T> static T atomicAdd(T *p, T v) { return emulated::exchanged(p, [=](T x) { return (T)(x + v); }); }
template <class T> static T atomicSub(T *p, T v) { return emulated::exchanged(p, [=](T x) { return (T)(x - v); }); }
template <class T> static T atomicMax(T *p, T v) { return emulated::exchanged(p, [=](T x) { return x < v ? v : x; }); }
template <class T> static T atomicMin(T *p, T v) { return emulated::exchanged(p, [=](T x) { return v < x ? v : x; }); }
template <class T> static T atomicExch(T *p, T v) { return emulated::exchanged(p, [=](T) { return v; }); }
template <class T> static T atomicOr(T *p, T v) { return emulated::exchanged(p, [=](T x) { return x | v; }); }
template <class T> static T atomicAnd(T *p, T v) { return emulated::exchanged(p, [=](T x) { return x & v; }); }
template <class T> static T atomicCAS(T *p, T old, T v)
{
    return emulated::exchanged(p, [=](T x) { return x == old ? v : x; });
}

template <class To, class From> static To emulated_bits(From value)
{
    To result;
    static_assert(sizeof(To) == sizeof(From), "of one size");
    memcpy(&result, &value, sizeof result);
    return result;
}
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned __int128)a * b >> 64;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
#define __expf expf
#define __logf logf
static inline float __fdividef(float a, float b) { return a / b; }
static inline void sincospif(float x, float *s, float *c) { *s = sinf(x * (float)M_PI), *c = cosf(x * (float)M_PI); }
static inline void sincospi(double x, double *s, double *c) { *s = sin(x * M_PI), *c = cos(x * M_PI); }
template <class T> static T __ldg(const T *p) { return *p; }
template <class A, class B> static auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B> static auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }

/* The types of cuda_fp16.h and cuda_bf16.h, as far as conversions go. */
#define EMULATED_FLOAT(NAME, WIDEN, NARROW)                                                                            \
    struct alignas(2) NAME {                                                                                           \
        unsigned short bits;                                                                                           \
        NAME() = default;                                                                                              \
        NAME(float value) : bits(emulated::NARROW(value)) {}                                                           \
        operator float() const { return emulated::WIDEN(bits); }                                                       \
    };
EMULATED_FLOAT(__half, half_to_float, float_to_half)
EMULATED_FLOAT(__nv_bfloat16, brain_to_float, float_to_brain)
typedef __half half;
static inline float __half2float(__half x) { return x; }
static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
