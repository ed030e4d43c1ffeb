/* CUDA C as host code: what `emulator.py` puts before a text, so that g++ compiles it and a launch runs.

   The threads of a block are fibers, of which one runs at a time, in the order of the launch, until it waits
   at a barrier or a shuffle. Those wait for all of the block, or for all lanes in the mask, as on a GPU; a wait
   that can never end is an error. Shared memory starts as garbage. One launch at a time. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emulated_shared")))

struct dim3 {
    unsigned x, y, z;
};
typedef dim3 uint3;
static dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

extern char __start_emulated_shared[] __attribute__((weak)), __stop_emulated_shared[] __attribute__((weak));

namespace emulated {

enum State { READY, AT_BARRIER, AT_SHUFFLE, DONE };
enum { MAX_THREADS = 1024, STACK = 256 << 10, MESSAGE = 400 };

struct Fiber {
    jmp_buf here;
    ucontext_t first;
    char *stack;
    State state;
    unsigned mask, turn;   /* of the shuffle it waits at; how many it has passed */
    uint64_t given[2];     /* what it gave to this shuffle and to the one before, which slower lanes still read */
    bool started;
};

typedef void (*Body)(void **arguments);

static Fiber fibers[MAX_THREADS];
static jmp_buf scheduler;
static ucontext_t starting;
static int now, n_threads;
static Body body;
static void **arguments;
static char message[MESSAGE];

static void say(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (!message[0])
        vsnprintf(message, MESSAGE, format, values);
    va_end(values);
}

/* Give way to the scheduler until it resumes this fiber. */
__attribute__((noinline)) static void wait(State state)
{
    Fiber &fiber = fibers[now];
    fiber.state = state;
    if (!_setjmp(fiber.here))
        _longjmp(scheduler, 1);
}

/* What a fiber does, launch after launch. */
static void live()
{
    for (;;) {
        body(arguments);
        wait(DONE);
    }
}

__attribute__((noinline)) static void resume(int number)
{
    Fiber &fiber = fibers[number];
    now = number;
    const unsigned x = blockDim.x, y = blockDim.y;
    threadIdx = {number % x, number / x % y, number / (x * y)};
    if (_setjmp(scheduler))
        return;
    if (fiber.started)
        _longjmp(fiber.here, 1);
    fiber.started = true;
    fiber.stack = (char *)mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack;
    fiber.first.uc_stack.ss_size = STACK;
    fiber.first.uc_link = 0;
    makecontext(&fiber.first, live, 0);
    swapcontext(&starting, &fiber.first);
}

/* Let warps go on of which all lanes in the mask have come to the shuffle. */
static bool release_warps()
{
    bool any = false;
    for (int first = 0; first < n_threads; first += warpSize)
        for (int lane = 0; lane < warpSize && first + lane < n_threads; lane++) {
            Fiber &fiber = fibers[first + lane];
            if (fiber.state != AT_SHUFFLE)
                continue;
            bool whole = fiber.mask >> lane & 1;
            if (!whole)
                say("thread %d is not in the mask %08x of its own shuffle", first + lane, fiber.mask);
            for (int other = 0; other < warpSize && whole; other++)
                if (fiber.mask >> other & 1)
                    whole = first + other < n_threads && fibers[first + other].state == AT_SHUFFLE &&
                            fibers[first + other].mask == fiber.mask;
            for (int other = 0; other < warpSize && whole; other++)
                if (fiber.mask >> other & 1)
                    fibers[first + other].state = READY;
            any |= whole;
        }
    return any;
}

static bool release_block()
{
    bool any = false;
    for (int i = 0; i < n_threads; i++)
        if (fibers[i].state == AT_SHUFFLE)
            return false;
    for (int i = 0; i < n_threads; i++)
        if (fibers[i].state == AT_BARRIER) {
            fibers[i].state = READY;
            any = true;
        }
    return any;
}

static void run_block(bool backwards, int garbage)
{
    if (__start_emulated_shared)
        memset(__start_emulated_shared, garbage, __stop_emulated_shared - __start_emulated_shared);
    for (int i = 0; i < n_threads; i++) {
        fibers[i].state = READY;
        fibers[i].turn = 0;
    }
    do
        for (int i = 0; i < n_threads; i++) {
            const int number = backwards ? n_threads - 1 - i : i;
            if (fibers[number].state == READY)
                resume(number);
        }
    while (!message[0] && (release_warps() || release_block()));
    for (int i = 0; i < n_threads && !message[0]; i++)
        if (fibers[i].state != DONE)
            say("thread %d of block (%u, %u, %u) waits at a %s for threads that never come there", i, blockIdx.x,
                blockIdx.y, blockIdx.z, fibers[i].state == AT_SHUFFLE ? "shuffle" : "barrier");
}

/* Shuffles: each lane gives a value, and reads that of another once all have given theirs. */
template <class T> static T exchange(unsigned mask, T value, int source)
{
    static_assert(sizeof(T) <= 8, "a shuffle takes at most 8 bytes");
    Fiber &fiber = fibers[now];
    const int me = now, slot = fiber.turn++ & 1;
    memcpy(&fiber.given[slot], &value, sizeof value);
    fiber.mask = mask;
    wait(AT_SHUFFLE);
    if (!(mask >> (source & 31) & 1))
        say("thread %d reads lane %d in a shuffle of the lanes in %08x", me, source, mask);
    memcpy(&value, &fibers[(me & ~31) + source].given[slot], sizeof value);
    return value;
}

static int lane()
{
    return now & 31;
}

/* What a kernel's parameters are, for the check of arguments: a letter for the kind of number and its size, after
   'p' those of what it points to; '?' is a structure, and of void the size is 0. */
template <class T> struct Kind {
    static constexpr char letter = T(0.5) != T(0) ? 'f' : T(-1) < T(0) ? 'i' : 'u';
    static constexpr int size = sizeof(T);
};
template <> struct Kind<bool> {
    static constexpr char letter = 'b';
    static constexpr int size = 1;
};
template <class T> struct Size {
    static constexpr int value = sizeof(T);
};
template <> struct Size<void> {
    static constexpr int value = 0;
};
template <> struct Size<const void> : Size<void> {};
template <class T, bool = __is_class(T)> struct Element {
    static constexpr char letter = Kind<T>::letter;
};
template <class T> struct Element<T, true> {
    static constexpr char letter = '?';
};
template <> struct Element<void, false> {
    static constexpr char letter = '?';
};
template <class T> struct Bare {
    typedef T type;
};
template <class T> struct Bare<const T> {
    typedef T type;
};
template <class T> static int describe(char *text)
{
    return sprintf(text, "%c%d ", Kind<T>::letter, Kind<T>::size);
}
template <class T> static int describe_pointer(char *text)
{
    return sprintf(text, "p%c%d ", Element<typename Bare<T>::type>::letter, Size<T>::value);
}
template <class T> struct Describe {
    static int to(char *text) { return describe<T>(text); }
};
template <class T> struct Describe<T *> {
    static int to(char *text) { return describe_pointer<T>(text); }
};

template <int... I> struct Numbers {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> {
    typedef Numbers<I...> type;
};

template <class... P, int... I> static void call(void (*kernel)(P...), void **values, Numbers<I...>)
{
    kernel(*(P *)values[I]...);
}
template <class... P> static void call(void (*kernel)(P...), void **values)
{
    call(kernel, values, typename Count<sizeof...(P)>::type());
}
template <class... P> static void describe_all(void (*)(P...), char *text)
{
    *text = 0;
    int unused[] = {0, (text += Describe<P>::to(text), 0)...};
    (void)unused;
}

} // namespace emulated

/* What the compiler has an access call whose address is no multiple of what the type asks for. */
extern "C" void __ubsan_handle_type_mismatch_v1(void *, void *place)
{
    emulated::say("thread %d reads or writes %p, which is not aligned", emulated::now, place);
}

/* Run a launch; returns what went wrong, or an empty text. */
extern "C" const char *emulated_launch(emulated::Body kernel, void **values, const unsigned *grid,
                                       const unsigned *block, int backwards, int garbage)
{
    using namespace emulated;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    n_threads = block[0] * block[1] * block[2];
    if (body != kernel || message[0]) /* those that wait in another kernel, or were left in the middle, start anew */
        for (Fiber &fiber : fibers)
            if (fiber.started && fiber.state != DONE) {
                munmap(fiber.stack, STACK);
                fiber.started = false;
            }
    body = kernel;
    arguments = values;
    message[0] = 0;
    const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    for (uint64_t k = 0; k < blocks && !message[0]; k++) {
        const uint64_t number = backwards ? blocks - 1 - k : k;
        blockIdx = {(unsigned)(number % grid[0]), (unsigned)(number / grid[0] % grid[1]),
                    (unsigned)(number / grid[0] / grid[1])};
        run_block(backwards, garbage);
    }
    return message;
}

#define EMULATED_KERNEL(NUMBER, ...)                                                                                   \
    extern "C" void emulated_call_##NUMBER(void **values) { emulated::call(&__VA_ARGS__, values); }                    \
    extern "C" void emulated_describe_##NUMBER(char *text) { emulated::describe_all(&__VA_ARGS__, text); }

#include "words.h"
