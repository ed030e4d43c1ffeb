/* The functions that all regions call: a library of its own, whose variables are set before it is used. */

/* Those that find elements are as fast so, and compiled sooner; `move` alone goes through them. */
#undef SHARED
#define SHARED __attribute__((noinline, noclone, optimize("O1"))) static

void *ndarray, **numpy, *scalars[24]; /* the type of arrays, NumPy's table of functions, the types of its scalars */

/* --- long runs ------------------------------------------------------------------------------------- */

#define PERIOD 20 /* milliseconds between two looks of a loop */

static __thread void *away; /* brings this thread back to Python, while it lets others run */
static __thread long worked; /* elements since the last look */
static __thread int broken;  /* whether a signal's handler raised while an element took its steps */

/* Let other threads of Python run during a long loop; return whether this one has to come back after it. */
SHARED int let_others(long n)
{
    if (n < LONG)
        return 0;
    worked += n;
    if (away)
        return 0;
    away = PyEval_SaveThread();
    return 1;
}

/* Return where the elements are counted that this thread has been through since the last look. */
SHARED long *worked_here(void)
{
    return &worked;
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
    if (broken || PyErr_CheckSignals())
        return broken = 0;
    away = others ? PyEval_SaveThread() : 0;
    return 1;
}

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

/* Return whether an element takes its next steps: not if a handler raised, which `breathe` will say again. */
SHARED int goes_on(void)
{
    static __thread Watch watch;
    if (broken || watch.left-- > 0)
        return !broken;
    const int back = !away;
    broken = !look(&watch);
    watch.left = 64; /* times at most, as the next element's steps may take longer */
    if (back)
        come_back();
    if (broken)
        worked = BREATH + 1;
    return !broken;
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
    if (ndim == 1) { /* for which there is nothing to choose */
        shape[0] = whole[0];
        for (int k = 0; k < n; k++)
            stride[0][k] = fixed[k] & 1 ? 0 : views[k]->strides[0];
        return whole[0] > 0;
    }
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

/* Copy elements from some places to others, each at equal distances. */
static void move(long size, long n, char *to, long by_to, const char *from, long by_from)
{
#define EACH(how, by_to, by_from)                                                                               \
    for (long i = 0; i < n; i++) {                                                                              \
        how;                                                                                                    \
        *(Unit *)(to + i * (by_to)) = *(const Unit *)(from + i * (by_from));                                    \
    }
#define MOVE(kind)                                                                                              \
    if (size == sizeof(kind)) {                                                                                 \
        typedef kind __attribute__((may_alias)) Unit;                                                           \
        if (by_to == size && by_from == size)                                                                   \
            memcpy(to, from, n * size);                                                                         \
        else if (by_to == size && by_from == 0)                                                                 \
            INDEPENDENT EACH(, sizeof(kind), 0)                                                                 \
        else                                                                                                    \
            EACH(__asm__(""), by_to, by_from) /* vectors of elements far apart take longer */                   \
        return;                                                                                                 \
    }
    MOVE(long) MOVE(int) MOVE(short) MOVE(char)
}

/* Copy the elements of a view to one of the same shape; bit i of `fixed`: one serves all along axis i. */
SHARED void copy(int ndim, const long *whole, long size, const View *from, long fixed, const View *to)
{
    if (ndim == 1 && whole[0] < LONG) { /* for which there is nothing to choose */
        move(size, whole[0], to->data, to->strides[0], from->data, fixed & 1 ? 0 : from->strides[0]);
        return;
    }
    const View *const views[] = {from, to};
    const long masks[] = {fixed, 0};
    long shape[ndim + 1], index[ndim + 1], stride[ndim + 1][2];
    char *p[] = {from->data, to->data};
    const int axes = walk(2, 1, ndim, whole, views, masks, shape, stride);
    if (!axes)
        return;
    for (int axis = 0; axis < axes; axis++)
        index[axis] = 0;
    const int others = let_others(elements(ndim, whole));
    do
        move(size, shape[axes - 1], p[1], stride[axes - 1][1], p[0], stride[axes - 1][0]);
    while (axes > 1 && next_row(2, axes - 1, shape, index, stride, p));
    if (others)
        come_back();
}

/* Return the way that is made for most of some strides, and how many of them. */
static int way_for(const Loop *loop, const long *s, int *most)
{
    int best = 0;
    *most = -1;
    for (int way = 0; way < loop->ways; way++) {
        int same = 0, fits = 1;
        for (int k = 0; k < loop->n; k++) {
            const long expected = loop->strides[way * loop->n + k];
            same += s[k] == expected;
            fits &= expected ? k < loop->n - loop->folds || s[k] : !s[k];
        }
        if (fits && same > *most) {
            *most = same;
            best = way;
        }
    }
    return best;
}

/* Compute a row by blocks; what lies otherwise than it expects is copied. */
static void by_blocks(const Loop *loop, int way, long length, char *const *p, const long *s)
{
    const int n = loop->n;
    const long *const expected = loop->strides + way * n, *const sizes = loop->sizes;
    char room[n][8 * BLOCK] __attribute__((aligned(64))), *q[n];
    for (long at = 0; at < length; at += BLOCK) {
        const long m = length - at < BLOCK ? length - at : BLOCK;
        for (int k = 0; k < n; k++) {
            q[k] = s[k] == expected[k] ? p[k] + at * s[k] : room[k];
            if (q[k] == room[k] && (k < loop->inputs || k >= n - loop->folds))
                move(sizes[k], m, q[k], sizes[k], p[k] + at * s[k], s[k]);
        }
        loop->rows[way](m, q, loop->constants);
        for (int k = loop->inputs; k < n; k++)
            if (q[k] == room[k])
                move(sizes[k], m, p[k] + at * s[k], s[k], q[k], sizes[k]);
    }
}

SHARED void run(const Loop *loop, const long *whole, const View *const *views)
{
    const int n = loop->n;
    long shape[loop->ndim], index[loop->ndim], stride[loop->ndim][n];
    char *p[n];
    const int axes = walk(n, loop->model, loop->ndim, whole, views, loop->fixed, shape, stride);
    if (!axes)
        return;
    for (int axis = 0; axis < axes; axis++)
        index[axis] = 0;
    for (int k = 0; k < n; k++)
        p[k] = views[k]->data;
    int same;
    const long length = shape[axes - 1], *const s = stride[axes - 1];
    const int way = way_for(loop, s, &same);
    const int others = let_others(elements(loop->ndim, whole));
    do
        if (same == n || length == 1)
            loop->rows[way](length, p, loop->constants);
        else
            by_blocks(loop, way, length, p, s);
    while (axes > 1 && next_row(n, axes - 1, shape, index, stride, p));
    if (others)
        come_back();
}

/* --- parts of arrays ------------------------------------------------------------------------------- */

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
        else if (shape[axis] < 0 || __builtin_mul_overflow(known, shape[axis], &known))
            return 0;
    if (open >= 0 && !known)
        return 0;
    if (open >= 0)
        shape[open] = total / known;
    return (open >= 0 ? known * shape[open] : known) == total;
}

/* --- BLAS ------------------------------------------------------------------------------------------ */

/* Tell whether BLAS can read a matrix as it lies: by rows, its transpose, 'N' or by columns, 'T'; 0 if not. */
SHARED int lies(const View *x, long size, int *lead)
{
    const long rows = x->shape[0], columns = x->shape[1];
    for (int by_columns = 0; by_columns < 2; by_columns++) {
        const long outer = by_columns ? columns : rows, inner = by_columns ? rows : columns;
        const long far = outer > 1 ? x->strides[by_columns] : inner * size;
        if ((inner > 1 && x->strides[1 - by_columns] != size) || far < inner * size || far % size
            || far / size >= COUNTABLE || outer >= COUNTABLE)
            continue;
        *lead = far / size;
        return by_columns ? 'T' : 'N';
    }
    return 0;
}

/* What oneDNN computes in less time than BLAS; set before the library is used, see `synk.native.products`. */
struct {
    int (*multiply)(char, char, long, long, long, float, const void *, long, const void *, long, float, void *, long);
    int (*get_threads)(void);
    void (*set_threads)(int);
    long rows, columns, least, most;
} onednn;

/* Set z to x @ y by oneDNN, if it is faster; return whether it did. */
SHARED int by_onednn(char by_x, char by_y, const View *x, int of_x, const View *y, int of_y, const View *z, int of_z)
{
    const long rows = x->shape[0], inner = x->shape[1], columns = y->shape[1], work = rows * inner * columns;
    if (!onednn.multiply || rows < onednn.rows || columns < onednn.columns || work < onednn.least
        || work > onednn.most)
        return 0;
    const int before = onednn.get_threads();
    onednn.set_threads(1);
    const int status = onednn.multiply(by_x, by_y, rows, columns, inner, 1, x->data, of_x, y->data, of_y, 0, z->data,
                                       of_z);
    onednn.set_threads(before);
    return !status;
}

#define AT(T, x, i, j) (*(T *)((x)->data + (i) * (x)->strides[0] + (j) * (x)->strides[1]))

/* Set z to x @ y: by one of BLAS's routines, if that can read and write them as they lie. */
#define MULTIPLY(T, k)                                                                                          \
    SHARED void multiply_##T(void *const *routines, const View *x, const View *y, const View *z)                \
    {                                                                                                           \
        typedef void Gemv(char *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *);                  \
        typedef void Gemm(char *, char *, int *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *);   \
        const long all = z->shape[0] * z->shape[1];                                                             \
        int rows = x->shape[0], inner = x->shape[1], columns = y->shape[1], of_x, of_y, of_z, one = 1;          \
        T alpha = 1, beta = 0;                                                                                  \
        char by_x = lies(x, sizeof(T), &of_x), by_y = lies(y, sizeof(T), &of_y);                                \
        const int others = let_others(all / 16 * x->shape[1]);                                                \
        /* BLAS takes columns for rows: a transpose is how a matrix lies by rows. */                            \
        if (!by_x || !by_y || lies(z, sizeof(T), &of_z) != 'N' || !inner || !all)                               \
            for (long i = 0; i < all; i++) {                                                                    \
                const long row = i / columns, column = i % columns;                                             \
                T sum = 0;                                                                                      \
                for (long j = 0; j < x->shape[1]; j++)                                                          \
                    sum += AT(T, x, row, j) * AT(T, y, j, column);                                              \
                AT(T, z, row, column) = sum;                                                                    \
            }                                                                                                   \
        else if (columns == 1)                                                                                  \
            ((Gemv *)routines[k])(by_x == 'N' ? "T" : "N", by_x == 'N' ? &inner : &rows,                        \
                                  by_x == 'N' ? &rows : &inner, &alpha, (T *)x->data, &of_x, (T *)y->data,      \
                                  &of_y, &beta, (T *)z->data, &of_z);                                           \
        else if (rows == 1)                                                                                     \
            ((Gemv *)routines[k])(by_y == 'N' ? "N" : "T", by_y == 'N' ? &columns : &inner,                     \
                                  by_y == 'N' ? &inner : &columns, &alpha, (T *)y->data, &of_y, (T *)x->data,   \
                                  by_x == 'N' ? &one : &of_x, &beta, (T *)z->data, &one);                       \
        else if (sizeof(T) != sizeof(float) || !by_onednn(by_x, by_y, x, of_x, y, of_y, z, of_z))               \
            ((Gemm *)routines[k + 2])(&by_y, &by_x, &columns, &rows, &inner, &alpha, (T *)y->data, &of_y,       \
                                      (T *)x->data, &of_x, &beta, (T *)z->data, &of_z);                         \
        if (others)                                                                                             \
            come_back();                                                                       \
    }
MULTIPLY(double, 0)
MULTIPLY(float, 1)

#define ADDRESS(type, name, arguments) name,
void *const functions[] = {FUNCTIONS(ADDRESS)};
