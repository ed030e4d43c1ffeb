/* What every file of loops starts with. After it comes one file, twice: for float and for double, each time
   with REAL as the type of an element, INT as an integer of its size, EXP as the exponential function, and
   NAME(f) as the name of f in that form. VECTORS declares that a function has a form on vectors. Functions
   that Python calls are not static; all arrays are C-contiguous, and no result is an input. */

#if defined(__SSE2__) && !defined(__clang__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* What a loop writes is none of what it reads. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

enum {
    LANES = 16,   /* sums side by side, which become vector instructions: C may not reorder one sum */
    WIDE = 64,    /* the same for a row, of which each takes few terms */
    BLOCK = 64,   /* terms that are added in REAL; blocks are added in double */
    PIECE = 1024, /* bytes of an array that are worked on at once; twice as many stall on their way from memory */
    AHEAD = 8192, /* bytes from what is worked on to what is asked for */
};

/* Results larger than this, in bytes, go past the caches: whoever reads them next would not find them there,
   and a line that is written whole need not be read first. */
#define LARGE (8L << 20)

INLINE long shorter(long a, long b)
{
    return a < b ? a : b;
}

INLINE long longer(long a, long b)
{
    return a > b ? a : b;
}

/* Ask for as many bytes as are worked on at `now`, further ahead. The processor does so by itself, but not
   across pages: with this, batch norm of 26 MB takes half the time. Beyond the end it does no harm. */
INLINE void prefetch(const void *now, long bytes)
{
    for (long at = 0; at < bytes; at += 64)
        __builtin_prefetch((const char *)now + AHEAD + at);
}

/* Write one line of 64 bytes, where `to` is a multiple of 64. */
INLINE void stream_line(char *to, const char *from)
{
#if defined(__clang__)
    typedef float Line __attribute__((vector_size(64)));
    Line line;
    __builtin_memcpy(&line, from, 64);
    __builtin_nontemporal_store(line, (Line *)to);
#elif defined(__AVX512F__)
    _mm512_stream_ps((float *)to, _mm512_loadu_ps((const float *)from));
#elif defined(__AVX__)
    _mm256_stream_ps((float *)to, _mm256_loadu_ps((const float *)from));
    _mm256_stream_ps((float *)to + 8, _mm256_loadu_ps((const float *)from + 8));
#elif defined(__SSE2__)
    for (int k = 0; k < 16; k += 4)
        _mm_stream_ps((float *)to + k, _mm_loadu_ps((const float *)from + k));
#else
    __builtin_memcpy(to, from, 64);
#endif
}

/* Copy past the caches. */
INLINE void stream(void *target, const void *source, long bytes)
{
    char *to = target;
    const char *from = source;
    const long head = shorter(-(unsigned long)to & 63, bytes);
    __builtin_memcpy(to, from, head);
    long at = head;
    for (; at + 64 <= bytes; at += 64)
        stream_line(to + at, from + at);
    __builtin_memcpy(to + at, from + at, bytes - at);
}

/* Let other cores see what was streamed. */
INLINE void end_stream(void)
{
#if defined(__SSE2__)
    __builtin_ia32_sfence();
#endif
}

/* total = the sum of `term` over i < n, in a fixed order: WIDE sums side by side, halved until one is left. */
#define SUM(total, i, n, term)                                                                                         \
    do {                                                                                                               \
        total = 0;                                                                                                     \
        for (long block_ = 0; block_ < (n); block_ += BLOCK * WIDE) {                                                  \
            REAL sums_[WIDE] = {0};                                                                                    \
            const long end_ = shorter((n), block_ + BLOCK * WIDE);                                                     \
            long at_ = block_;                                                                                         \
            for (; at_ + WIDE <= end_; at_ += WIDE)                                                                    \
                for (long i = at_; i < at_ + WIDE; i++)                                                                \
                    sums_[i - at_] += (term);                                                                          \
            for (long i = at_; i < end_; i++)                                                                          \
                sums_[i - at_] += (term);                                                                              \
            for (int half_ = WIDE / 2; half_ > 0; half_ /= 2)                                                          \
                for (int lane_ = 0; lane_ < half_; lane_++)                                                            \
                    sums_[lane_] += sums_[lane_ + half_];                                                              \
            total += sums_[0];                                                                                         \
        }                                                                                                              \
    } while (0)
