/* What every kernel file starts with: NumPy's arrays as they lie in memory, and walks over their axes.

   The headers of Python and NumPy would take ten times as long to compile as a kernel. HEAD is the size
   of a Python object's head, whose last member is its type. Before a library is used, `ndarray` is set
   to numpy.ndarray, and `synk.native.libraries` has compared this layout with a real array. */

enum { DONE, MISMATCH, UNFIT };

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
    int number;      /* of its dtype */
    long broadcast;  /* bit i: the one element along axis i serves all */
} Operand;

#define ALIGNED 0x0100
#define WRITEABLE 0x0400

/* An output may be an input, element for element, which hinders no vector loop. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Keeps a loop from becoming vector instructions, which would take as long again to compile. */
#define SCALAR __asm__("")

/* One walk serves all kernels: a copy of it in each would take most of the time to compile. */
#define SHARED __attribute__((noinline, noclone)) static

void *ndarray;

static int is_plain(const Array *a, const Operand *operand, int ndim, int needed)
{
    return a->type == ndarray && a->ndim == ndim && a->dtype->number == operand->number
        && a->dtype->byteorder != '>' && (a->flags & needed) == needed;
}

static long magnitude(long x)
{
    return x < 0 ? -x : x;
}

/* Return the common length along an axis, or -1 if lengths differ. */
static long common_length(int n, int axis, Array *const *arrays, const Operand *operands)
{
    long length = 1;
    int known = 0;
    for (int k = n - 1; k >= 0; k--) {
        const long own = arrays[k]->shape[axis];
        if (operands[k].broadcast >> axis & 1) {
            if (own != 1)
                return -1;
        } else if (!known) {
            length = own;
            known = 1;
        } else if (own != length)
            return -1;
    }
    return length;
}

/* Insert an axis so that the strides of the first output fall from row to row. */
static void insert_axis(int n, int first, int count, long length, const long *steps, long *shape, long (*stride)[n])
{
    int at = count;
    for (; at > 0 && magnitude(stride[at - 1][first]) < magnitude(steps[first]); at--) {
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

/* Fill in shape and strides of the walk. Return DONE if there is nothing to do, MISMATCH or UNFIT, else
   the negative number of axes, one at least. */
SHARED int geometry(int n, int n_inputs, int ndim, Array *const *arrays, const Operand *operands, long *shape,
                    long (*stride)[n])
{
    for (int k = 0; k < n; k++)
        if (!is_plain(arrays[k], &operands[k], ndim, k < n_inputs ? ALIGNED : ALIGNED | WRITEABLE))
            return UNFIT;
    int count = 0, empty = 0;
    for (int axis = 0; axis < ndim; axis++) {
        const long length = common_length(n, axis, arrays, operands);
        if (length < 0)
            return MISMATCH;
        empty |= length == 0;
        if (length == 1)
            continue;
        long steps[n];
        for (int k = 0; k < n; k++)
            steps[k] = operands[k].broadcast >> axis & 1 ? 0 : arrays[k]->strides[axis];
        insert_axis(n, n_inputs, count++, length, steps, shape, stride);
    }
    if (empty)
        return DONE;
    if (count == 0) {
        shape[0] = 1;
        for (int k = 0; k < n; k++)
            stride[0][k] = 0;
        return -1;
    }
    return -merge_axes(n, count, shape, stride);
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
