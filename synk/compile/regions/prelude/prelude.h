/* What every file of regions starts with: NumPy's arrays as they lie in memory, views, loops, and the functions
   of the files beside this one, which are a library of their own: compiled with each region, it would take longer
   than most. It defines PRELUDE, and its variables are set before it is used.

   The headers of Python and NumPy would take ten times as long to compile as a region. HEAD is the size of a
   Python object's head, whose last member is its type; `synk.compile.native.methods` has compared these layouts with a
   real array. */

typedef struct {
    char head[HEAD];
    void *scalar_type;
    char kind, type, byteorder, flags;
    int number;
} Dtype;

typedef struct {
    char head[HEAD - sizeof(void *)];
    void *type;
    char *data;
    int ndim;
    long *shape, *strides;
    void *base;
    Dtype *dtype;
    int flags;
} Array;

typedef struct {
    char *data;
    const long *shape, *strides;
} View;

#define ALIGNED 0x0100
#define WRITEABLE 0x0400

/* An output may be an input, element for element, which hinders no vector loop. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Keeps a short loop for the compiler to make vectors of: it finds none among choices that it has unrolled. */
#ifdef __clang__
#define ROLLED
#else
#define ROLLED _Pragma("GCC unroll 1")
#endif

/* One copy serves all: a copy in each function would take most of the time to compile. Functions that find elements
   are as fast so, and compiled sooner; `move` alone goes through them. */
#ifdef PRELUDE
#define SHARED __attribute__((noinline, noclone, optimize("O1"))) static
#else
#define SHARED __attribute__((noinline, noclone)) static
#endif

/* A function of many lines that run once a call: what takes time are the loops that it calls. Compilers take longer
   than linearly for them, above all to tell where its many pointers lead. */
#define ONCE __attribute__((optimize("O1", "no-tree-pta")))

#define BLOCK 256 /* elements that are folded or copied at a time: they stay in the nearest cache */

extern char _Py_NoneStruct[];
extern void Py_IncRef(void *), Py_DecRef(void *);
extern void *PyTuple_New(long);
extern int PyTuple_SetItem(void *, long, void *);
extern void *malloc(unsigned long), *memcpy(void *, const void *, unsigned long);
extern void free(void *);

/* What makes a function of Python of one that takes an array of arguments and its length. */
#define FASTCALL 0x80
#define METHOD(f) struct { const char *name; void *function; int flags; const char *doc; } f##_method = {"region", f, FASTCALL, 0}

extern int PyErr_CheckSignals(void);
extern void PyErr_Clear(void);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);

extern int clock_gettime(int, long *);

#define LONG 20000 /* elements, which take longer than it takes to let other threads run meanwhile */
#define BREATH (200 * (long)LONG) /* elements between two looks for signals */

/* Steps of a loop until the clock is read, which costs as much as a step of a few numbers. */
typedef struct {
    long left, every, last;
} Watch;

/* Compute a row of n elements, of which the first ones lie at p; c are numbers. */
typedef void Row(long n, char *const *p, const double *c);

/* What happens to each element of n views, of which the first ones are read, and the last ones folded to. */
typedef struct {
    int n, inputs, folds, ndim, ways;
    const long *sizes, *fixed; /* by view: bytes of an element; bits of axes along which one element serves all */
    const long *strides; /* by way and view, those that a row is made for: 0, or the size of an element */
    Row *const *rows; /* by way */
    const double *constants; /* that rows get */
} Loop;

#define COUNTABLE (1L << 30) /* elements, which BLAS and LAPACK count in int */
#define ABSENT (-__LONG_MAX__ - 1)

static long magnitude(long x)
{
    return x < 0 ? -x : x;
}

static long elements(int ndim, const long *shape)
{
    long n = 1;
    for (int axis = 0; axis < ndim; axis++)
        n *= shape[axis];
    return n;
}

/* Fill in the strides of an array in C order, return how many bytes it has, -1 for more than there can be. */
SHARED long dense(int ndim, const long *shape, long size, long *strides)
{
    for (int axis = ndim - 1; axis >= 0; axis--) {
        strides[axis] = size;
        if (shape[axis] < 0 || __builtin_mul_overflow(size, shape[axis], &size))
            return -1;
    }
    return size;
}

/* Return room for an array: of the frame while that lasts, then the heap's. */
SHARED void *take(char **room, char *end, long bytes)
{
    if (bytes < 0 || bytes > __LONG_MAX__ - 63)
        return 0;
    const long rounded = bytes ? (bytes + 63) & -64 : 64;
    if (rounded <= end - *room) {
        void *at = *room;
        *room += rounded;
        return at;
    }
    return malloc(rounded);
}

SHARED void give(char *frame, char *end, void **place)
{
    if (*place && ((char *)*place < frame || (char *)*place >= end))
        free(*place);
    *place = 0;
}

/* Return an end of a slice that is there: ABSENT stands for one that is not. */
static long end(long x)
{
    return x == ABSENT ? ABSENT + 1 : x;
}

/* Functions of the library: what they return, names, arguments. */
#define FUNCTIONS(_)                                                                                            \
    _(long *, worked_here, (void))                                                                              \
    _(int, let_others, (long n))                                                                                \
    _(void, come_back, (void))                                                                                  \
    _(int, breathe, (void))                                                                                     \
    _(long, milliseconds, (void))                                                                               \
    _(int, look, (Watch *watch))                                                                                \
    _(int, goes_on, (void))                                                                                     \
    _(int, is_plain, (const Array *a, int number, int ndim, int needed))                                        \
    _(const char *, number_in, (const Array *a, int number))                                                    \
    _(Array *, result, (void *given, int ndim, const long *shape, const long *strides, int number))             \
    _(void, give_all, (char *frame, char *end, int n, void **places))                                           \
    _(void, let_go, (int n, Array **results))                                                                   \
    _(void *, packed, (int n, Array **results))                                                                 \
    _(void *, nothing, (int n, Array **results))                                                                \
    _(long, dense_like, (int ndim, const long *shape, long size, long *strides, const View *model))             \
    _(int, common_shape, (int n, int ndim, const View *const *views, const long *fixed, long *shape))           \
    _(void, copy, (int ndim, const long *whole, long size, const View *from, long fixed, const View *to))       \
    _(int, next_row, (int n, int outer, const long *shape, long *index, long (*stride)[n], char **p))           \
    _(void, run, (const Loop *loop, const long *whole, const View *const *views))                               \
    _(int, numbers, (long start, long stop, long step, long *count))                                            \
    _(int, slice, (long length, long start, long stop, long step, long *first, long *count))                    \
    _(long, dense_rows, (const View *x, int first, const View *y, int ndim, long size))                         \
    _(int, regroup, (int ndim, const View *view, long size, int n, const long *shape, long *strides))           \
    _(int, fill_in, (int n, long *shape, long total))                                                           \
    _(int, lies, (const View *x, long size, int *lead))                                                         \
    _(void, multiply_double, (void *const *routines, const View *x, const View *y, const View *z))              \
    _(void, multiply_float, (void *const *routines, const View *x, const View *y, const View *z))

#ifdef PRELUDE

#define DECLARE(type, name, arguments) SHARED type name arguments;
#define ADDRESS(type, name, arguments) name,
FUNCTIONS(DECLARE)
void *const functions[] = {FUNCTIONS(ADDRESS)};

#else

#define POINTER(type, name, arguments) static type(*name) arguments;
#define CONNECT(type, name, arguments) name = *from++;
FUNCTIONS(POINTER)

/* Take over where those are; called before a library of regions is used. */
void connect(void **from)
{
    FUNCTIONS(CONNECT)
}

#endif
