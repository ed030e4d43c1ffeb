/* Arrays that come and go, their shapes, and parts of them. */

void *ndarray, **numpy, *scalars[24]; /* the type of arrays, NumPy's table of functions, the types of its scalars */

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

/* Return the one result, or a tuple of them; 0 if there is no memory for it, or a signal's handler raised. */
SHARED void *packed(int n, Array **results)
{
    if (broken)
        return 0;
    if (n == 1)
        return results[0];
    void *const tuple = PyTuple_New(n);
    for (int k = 0; tuple && k < n; k++)
        PyTuple_SetItem(tuple, k, results[k]);
    return tuple;
}

/* Return None, which says that the region gave up; 0 if a signal's handler raised, whose error stays. */
SHARED void *nothing(int n, Array **results)
{
    come_back();
    let_go(n, results);
    if (broken) {
        broken = 0;
        return 0;
    }
    PyErr_Clear(); /* of memory that there is not */
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

/* --- parts ----------------------------------------------------------------------------------------- */

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

/* Find strides with which the elements of a view are those of another shape; return 0, and those of a copy, if
   there are none. */
SHARED int regroup(int ndim, const View *view, long size, int n, const long *shape, long *strides)
{
    (void)dense(n, shape, size, strides);
    if (!elements(ndim, view->shape))
        return 1;
    long left = 1, step = size, found[n + 1]; /* elements of the view's axes that are taken, not yet of new ones */
    int axis = ndim;
    for (int k = n - 1; k >= 0; k--) {
        while (left % shape[k]) {
            do
                axis--;
            while (view->shape[axis] == 1);
            if (left > 1 && view->strides[axis] != left * step)
                return 0;
            step = left > 1 ? step : view->strides[axis];
            left *= view->shape[axis];
        }
        found[k] = step;
        step *= shape[k];
        left /= shape[k];
    }
    memcpy(strides, found, n * sizeof(long));
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
