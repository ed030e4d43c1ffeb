/* The functions and types that CUDA brings, on the fibers of emulator.h. */

namespace emulated {

/* By what a text's own PTX is replaced: one name for each instruction. */
static void cvt_f32_f16(float &to, unsigned short from)
{
    _Float16 half;
    memcpy(&half, &from, 2);
    to = half;
}
static void cvt_rn_f16_f32(unsigned short &to, float from)
{
    const _Float16 half = (_Float16)from;
    memcpy(&to, &half, 2);
}
static void cvt_rn_bf16_f32(unsigned short &to, float from)
{
    uint32_t wide;
    memcpy(&wide, &from, 4);
    to = from != from ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
}

} // namespace emulated

static inline void __syncthreads() { emulated::wait(emulated::AT_BARRIER); }
template <class T> static T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const int lane = emulated::lane();
    return emulated::exchange(mask, value, (lane & (width - 1)) + (int)by < width ? lane + (int)by : lane);
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32)
{
    const int lane = emulated::lane(), other = lane ^ by;
    return emulated::exchange(mask, value, (other & ~(width - 1)) <= (lane & ~(width - 1)) ? other : lane);
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
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
template <class A, class B> static auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B> static auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }
