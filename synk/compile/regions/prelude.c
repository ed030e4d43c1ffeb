/* What every file of regions starts with: NumPy's arrays as they lie in memory, views, and walks over their axes.

   The headers of Python and NumPy would take ten times as long to compile as a region. HEAD is the size of a
   Python object's head, whose last member is its type. Before a library is used, `numpy` is set to NumPy's table
   of functions and `scalars` to the types of its scalars, and `synk.native.libraries` has compared these layouts
   with a real array. */

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

/* Keeps a loop from becoming vector instructions, which would take as long again to compile. */
#define SCALAR __asm__("")

/* One copy serves all: a copy in each function would take most of the time to compile. */
#define SHARED __attribute__((noinline, noclone)) static

#define BLOCK 256 /* elements that are folded at a time: they stay in the nearest cache */

void *ndarray, **numpy, *scalars[24];

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

/* --- long runs ------------------------------------------------------------------------------------- */

#define LONG 20000 /* elements, which take longer than it takes to let other threads run meanwhile */
#define BREATH (200 * (long)LONG) /* elements between two looks for signals */
#define PERIOD 20 /* milliseconds between two looks of a loop */

static __thread void *away; /* brings this thread back to Python, while it lets others run */
static __thread long worked; /* elements since the last look */

/* Let other threads of Python run during a long loop, and say what brings this one back; 0 for a short one. */
SHARED void *let_others(long n)
{
    if (n < LONG)
        return 0;
    worked += n;
    return away ? 0 : PyEval_SaveThread();
}

SHARED void come_back(void)
{
    if (away)
        PyEval_RestoreThread(away);
    away = 0;
}

/* Let the handlers of signals run; return 0, back in Python, if one raised. */
SHARED int breathe(void)
{
    void *const others = away;
    come_back();
    worked = 0;
    if (PyErr_CheckSignals())
        return 0;
    away = others ? PyEval_SaveThread() : 0;
    return 1;
}

/* Steps of a loop until the clock is read, which costs as much as a step of a few numbers. */
typedef struct {
    long left, every, last;
} Watch;

SHARED long milliseconds(void)
{
    long time[2];
    (void)clock_gettime(6, time); /* the coarse one, for which the system is not called */
    return time[0] * 1000 + time[1] / 1000000;
}

/* Read the clock, and let others run if it is time, also after that; return 0 if a signal's handler raised. */
SHARED int look(Watch *watch)
{
    const long now = milliseconds(), passed = now - watch->last;
    if (passed < PERIOD) {
        watch->every *= watch->every < 1 << 20 ? 2 : 1;
        watch->left = watch->every;
        return 1;
    }
    if (passed > 2 * PERIOD)
        watch->every = watch->every * PERIOD / passed + 1;
    watch->left = watch->every;
    watch->last = now;
    if (!away)
        away = PyEval_SaveThread();
    return breathe();
}

/* --- values that come and go ----------------------------------------------------------------------- */

SHARED int is_plain(const Array *a, int number, int ndim, int needed)
{
    return a->type == ndarray && a->ndim == ndim && a->dtype->number == number && a->dtype->byteorder != '>'
        && (a->flags & needed) == needed;
}

/* Return where the number of a 0-d array or of one of NumPy's scalars lies, or 0 if it is neither. */
SHARED const char *number_in(const Array *a, int number)
{
    if (a->type == scalars[number])
        return a->head + HEAD;
    return is_plain(a, number, 0, ALIGNED) ? a->data : 0;
}

/* Return a new array, or one that was given to be written if it is fit for it; 0 if it is not. */
SHARED Array *result(void *given, int ndim, const long *shape, const long *strides, int number)
{
    typedef Array *(*New)(void *, int, const long *, int, const long *, void *, int, int, void *);
    Array *const a = given;
    if (a == 0 || given == _Py_NoneStruct)
        return ((New)numpy[93])(ndarray, ndim, shape, number, strides, 0, 0, 0, 0);
    if (!is_plain(a, number, ndim, ALIGNED | WRITEABLE))
        return 0;
    for (int axis = 0; axis < ndim; axis++)
        if (a->shape[axis] != shape[axis])
            return 0;
    Py_IncRef(a);
    return a;
}

/* Return room for an array: of the frame while that lasts, then the heap's. */
SHARED void *take(char **room, char *end, long bytes)
{
    if (bytes < 0)
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

SHARED void give_all(char *frame, char *end, int n, void **places)
{
    for (int k = 0; k < n; k++)
        give(frame, end, &places[k]);
}

SHARED void let_go(int n, Array **results)
{
    for (int k = 0; k < n; k++)
        if (results[k])
            Py_DecRef(results[k]);
}

/* Return the one result, or a tuple of them; 0 if there is no memory for it. */
SHARED void *packed(int n, Array **results)
{
    if (n == 1)
        return results[0];
    void *const tuple = PyTuple_New(n);
    for (int k = 0; tuple && k < n; k++)
        PyTuple_SetItem(tuple, k, results[k]);
    return tuple;
}

/* Return None, which says that the region gave up. */
SHARED void *nothing(int n, Array **results)
{
    come_back();
    PyErr_Clear(); /* of memory that there is not */
    let_go(n, results);
    Py_IncRef(_Py_NoneStruct);
    return _Py_NoneStruct;
}

/* --- shapes ---------------------------------------------------------------------------------------- */

static long magnitude(long x)
{
    return x < 0 ? -x : x;
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

/* As `dense`, with the axes in the order of another array's, so that both are walked alike. */
SHARED long dense_like(int ndim, const long *shape, long size, long *strides, const View *model)
{
    int order[ndim + 1];
    for (int axis = 0; axis < ndim; axis++) {
        int at = axis;
        for (; at > 0 && magnitude(model->strides[order[at - 1]]) < magnitude(model->strides[axis]); at--)
            order[at] = order[at - 1];
        order[at] = axis;
    }
    for (int k = ndim - 1; k >= 0; k--) {
        strides[order[k]] = size;
        if (__builtin_mul_overflow(size, shape[order[k]], &size))
            return -1;
    }
    return size;
}

/* Fill in the common shape of operands; return 0 if their lengths differ. Bit i of `fixed`: the one element
   along axis i serves all. */
SHARED int common_shape(int n, int ndim, const View *const *views, const long *fixed, long *shape)
{
    for (int axis = 0; axis < ndim; axis++) {
        int known = 0;
        shape[axis] = 1;
        for (int k = 0; k < n; k++) {
            const long own = views[k]->shape[axis];
            if (fixed[k] >> axis & 1) {
                if (own != 1)
                    return 0;
            } else if (!known) {
                shape[axis] = own;
                known = 1;
            } else if (own != shape[axis])
                return 0;
        }
    }
    return 1;
}

SHARED long elements(int ndim, const long *shape)
{
    long n = 1;
    for (int axis = 0; axis < ndim; axis++)
        n *= shape[axis];
    return n;
}

/* --- walks ----------------------------------------------------------------------------------------- */

/* Insert an axis so that the strides of the model fall from row to row. */
static void insert_axis(int n, int model, int count, long length, const long *steps, long *shape, long (*stride)[n])
{
    int at = count;
    for (; at > 0 && magnitude(stride[at - 1][model]) < magnitude(steps[model]); at--) {
        shape[at] = shape[at - 1];
        for (int k = 0; k < n; k++)
            stride[at][k] = stride[at - 1][k];
    }
    shape[at] = length;
    for (int k = 0; k < n; k++)
        stride[at][k] = steps[k];
}

/* Take neighbouring axes as one where all operands step through them evenly; return how many are left. */
static int merge_axes(int n, int count, long *shape, long (*stride)[n])
{
    int last = 0;
    for (int axis = 1; axis < count; axis++) {
        int even = 1;
        for (int k = 0; k < n; k++)
            even &= stride[last][k] == stride[axis][k] * shape[axis];
        shape[even ? last : last + 1] = even ? shape[last] * shape[axis] : shape[axis];
        last += !even;
        for (int k = 0; k < n; k++)
            stride[last][k] = stride[axis][k];
    }
    return last + 1;
}

#define SHORT 8 /* elements of a row, of which each costs as much as the way to it */

/* Let a long axis be the last instead of a short one. */
static void lengthen_rows(int n, int count, long *shape, long (*stride)[n])
{
    int longest = count - 1;
    for (int axis = 0; axis < count; axis++)
        if (shape[axis] > shape[longest])
            longest = axis;
    if (shape[count - 1] >= SHORT || shape[longest] < 4 * SHORT)
        return;
    const long length = shape[longest];
    shape[longest] = shape[count - 1];
    shape[count - 1] = length;
    for (int k = 0; k < n; k++) {
        const long step = stride[longest][k];
        stride[longest][k] = stride[count - 1][k];
        stride[count - 1][k] = step;
    }
}

/* Fill in shape and strides of a walk over `whole`; return the number of its axes, 0 if nothing is there. */
SHARED int walk(int n, int model, int ndim, const long *whole, const View *const *views, const long *fixed,
                long *shape, long (*stride)[n])
{
    int count = 0;
    for (int axis = 0; axis < ndim; axis++) {
        if (whole[axis] == 0)
            return 0;
        if (whole[axis] == 1)
            continue;
        long steps[n];
        for (int k = 0; k < n; k++)
            steps[k] = fixed[k] >> axis & 1 ? 0 : views[k]->strides[axis];
        insert_axis(n, model, count++, whole[axis], steps, shape, stride);
    }
    if (count == 0) {
        shape[0] = 1;
        for (int k = 0; k < n; k++)
            stride[0][k] = 0;
        return 1;
    }
    count = merge_axes(n, count, shape, stride);
    lengthen_rows(n, count, shape, stride);
    return count;
}

/* Move the pointers to the next row; return 0 after the last. */
SHARED int next_row(int n, int outer, const long *shape, long *index, long (*stride)[n], char **p)
{
    for (int axis = outer - 1; axis >= 0; axis--) {
        const int more = ++index[axis] < shape[axis];
        const long steps = more ? 1 : 1 - shape[axis];
        for (int k = 0; k < n; k++)
            p[k] += steps * stride[axis][k];
        if (more)
            return 1;
        index[axis] = 0;
    }
    return 0;
}

/* --- parts of arrays ------------------------------------------------------------------------------- */

#define ABSENT (-__LONG_MAX__ - 1)
#define FAR (1L << 53) /* from where on NumPy, which counts in floating point, counts as it does */

/* Find how many numbers lie from one to another, in steps; return 0 if they are far apart, or never meet. */
SHARED int numbers(long start, long stop, long step, long *count)
{
    long way;
    if (step == 0 || step == ABSENT || __builtin_sub_overflow(stop, start, &way) || way > FAR || way < -FAR)
        return 0;
    way = step < 0 ? -way : way;
    *count = way > 0 ? (way - 1) / magnitude(step) + 1 : 0;
    return 1;
}

/* Return an end of a slice that is there: ABSENT stands for one that is not. */
static long end(long x)
{
    return x == ABSENT ? ABSENT + 1 : x;
}

/* Find the first element and the number of those of a slice, as Python does. */
SHARED int slice(long length, long start, long stop, long step, long *first, long *count)
{
    const long low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
#define CLIP(x) ((x) < 0 ? ((x) + length < low ? low : (x) + length) : (x) > high ? high : (x))
    start = start == ABSENT ? (step < 0 ? high : low) : CLIP(start);
    stop = stop == ABSENT ? (step < 0 ? low : high) : CLIP(stop);
    *first = start;
    return numbers(start, stop, end(step), count);
}

/* Return how many elements a row of two arrays has, if each row lies in C order; 0 if it does not. */
SHARED long dense_rows(const View *x, int first, const View *y, int ndim, long size)
{
    long count = 1;
    for (int axis = ndim - 1; axis >= 0; axis--) {
        const long length = y->shape[1 + axis], step = count * size;
        if (length != 1 && (x->strides[first + axis] != step || y->strides[1 + axis] != step))
            return 0;
        count *= length;
    }
    return count;
}

/* Find strides with which the elements of a view are those of another shape; return 0 if there are none. */
SHARED int regroup(int ndim, const View *view, long size, int n, const long *shape, long *strides)
{
    long expected = size;
    (void)dense(n, shape, size, strides);
    for (int axis = ndim - 1; axis >= 0; axis--) {
        if (view->shape[axis] != 1 && view->strides[axis] != expected)
            return 0;
        expected *= view->shape[axis];
    }
    return 1;
}

/* Put the one length that is -1 in its place; return 0 if a shape has another number of elements. */
SHARED int fill_in(int n, long *shape, long total)
{
    long known = 1;
    int open = -1;
    for (int axis = 0; axis < n; axis++)
        if (shape[axis] == -1 && open < 0)
            open = axis;
        else if (shape[axis] < 0)
            return 0;
        else
            known *= shape[axis];
    if (open >= 0 && !known)
        return 0;
    if (open >= 0)
        shape[open] = total / known;
    return (open >= 0 ? known * shape[open] : known) == total;
}

/* --- BLAS ------------------------------------------------------------------------------------------ */

/* Set before a library is used, to what SciPy exports: see `ROUTINES` in `synk.native.libraries`. */
void *routines[16];

#define MANY 4096 /* elements of a matrix, from which on BLAS is faster than a loop */

/* Set y to a @ x, if BLAS can read them as they lie; return whether it did. It walks matrices forwards only. */
#define GEMV(T, k)                                                                                              \
    SHARED int gemv_##T(const char *a, long rows, long columns, long by_row, long by_column, const View *x,     \
                        const View *y)                                                                          \
    {                                                                                                           \
        typedef void Gemv(char *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *);                  \
        const long size = sizeof(T), most = 1L << 30;                                                           \
        long in = x->strides[0], out = y->strides[0];                                                           \
        if (rows * columns < MANY || rows > most || columns > most || !in || !out || in % size || out % size)   \
            return 0;                                                                                           \
        if (by_row < 0) {                                                                                       \
            a += (rows - 1) * by_row;                                                                           \
            by_row = -by_row;                                                                                   \
            out = -out;                                                                                         \
        }                                                                                                       \
        if (by_column < 0) {                                                                                    \
            a += (columns - 1) * by_column;                                                                     \
            by_column = -by_column;                                                                             \
            in = -in;                                                                                           \
        }                                                                                                       \
        const long by_rows = by_column == size, lead = by_rows ? by_row : by_column;                            \
        if ((!by_rows && by_row != size) || lead > most || lead < (by_rows ? columns : rows) * size             \
            || lead % size)                                                                                     \
            return 0;                                                                                           \
        /* Of a vector that it walks backwards, BLAS takes the first element in memory, which is the view's or  \
           its last one. */                                                                                     \
        char *const from = x->data + (x->strides[0] < 0 ? (columns - 1) * x->strides[0] : 0);                   \
        char *const to = y->data + (y->strides[0] < 0 ? (rows - 1) * y->strides[0] : 0);                        \
        int m = by_rows ? columns : rows, n = by_rows ? rows : columns;                                         \
        int step = lead / size, in_step = in / size, out_step = out / size;                                     \
        T alpha = 1, beta = 0;                                                                                  \
        void *const others = let_others(rows * columns);                                                        \
        ((Gemv *)routines[k])(by_rows ? "T" : "N", &m, &n, &alpha, (T *)a, &step, (T *)from, &in_step, &beta,   \
                              (T *)to, &out_step);                                                              \
        if (others)                                                                                             \
            PyEval_RestoreThread(others);                                                                       \
        return 1;                                                                                               \
    }
GEMV(double, 0)
GEMV(float, 1)

#define PRODUCTS 2048 /* of numbers, from which on BLAS multiplies matrices faster than a loop */

/* Tell whether BLAS can read a matrix as it lies: by rows, its transpose, 'N' or by columns, 'T'; 0 if not. */
SHARED char lies(const View *x, long size, int *lead)
{
    const long most = 1L << 30, rows = x->shape[0], columns = x->shape[1];
    for (int by_columns = 0; by_columns < 2; by_columns++) {
        const long outer = by_columns ? columns : rows, inner = by_columns ? rows : columns;
        const long far = outer > 1 ? x->strides[by_columns] : inner * size;
        if ((inner > 1 && x->strides[1 - by_columns] != size) || far < inner * size || far % size || far > most
            || outer > most || inner > most)
            continue;
        *lead = far / size;
        return by_columns ? 'T' : 'N';
    }
    return 0;
}

/* What oneDNN computes in less time than BLAS; set before a library is used, see `synk.native.products`. */
struct {
    int (*multiply)(char, char, long, long, long, float, const void *, long, const void *, long, float, void *, long);
    int (*get_threads)(void);
    void (*set_threads)(int);
    long rows, columns, least, most;
} onednn;

/* Set z to alpha * x @ y + beta * z by oneDNN, if it is faster; return whether it did. */
SHARED int by_onednn(char by_x, char by_y, float alpha, const View *x, int of_x, const View *y, int of_y, float beta,
                     const View *z, int of_z)
{
    const long rows = x->shape[0], inner = x->shape[1], columns = y->shape[1], work = rows * inner * columns;
    if (!onednn.multiply || rows < onednn.rows || columns < onednn.columns || work < onednn.least
        || work > onednn.most)
        return 0;
    const int before = onednn.get_threads();
    onednn.set_threads(1);
    const int status = onednn.multiply(by_x, by_y, rows, columns, inner, alpha, x->data, of_x, y->data, of_y, beta,
                                       z->data, of_z);
    onednn.set_threads(before);
    return !status;
}

/* Set z to alpha * x @ y + beta * z, if BLAS can read them as they lie; return whether it did. */
#define GEMM(T, k)                                                                                              \
    SHARED int gemm_##T(T alpha, const View *x, const View *y, T beta, const View *z)                           \
    {                                                                                                           \
        typedef void Gemm(char *, char *, int *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *);   \
        const long rows = x->shape[0], inner = x->shape[1], columns = y->shape[1];                              \
        int m = columns, n = rows, l = inner, of_x, of_y, of_z;                                                 \
        if (rows * inner < PRODUCTS / (columns + 1))                                                            \
            return 0;                                                                                           \
        char by_x = lies(x, sizeof(T), &of_x), by_y = lies(y, sizeof(T), &of_y);                                \
        if (!by_x || !by_y || !inner || lies(z, sizeof(T), &of_z) != 'N')                                       \
            return 0;                                                                                           \
        void *const others = let_others(rows * inner / 16 * columns);                                           \
        if (sizeof(T) != sizeof(float) || !by_onednn(by_x, by_y, alpha, x, of_x, y, of_y, beta, z, of_z))       \
            ((Gemm *)routines[k])(&by_y, &by_x, &m, &n, &l, &alpha, (T *)y->data, &of_y, (T *)x->data, &of_x,   \
                                  &beta, (T *)z->data, &of_z);                                                  \
        if (others)                                                                                             \
            PyEval_RestoreThread(others);                                                                       \
        return 1;                                                                                               \
    }
GEMM(double, 2)
GEMM(float, 3)
