/* Walks over the elements of views, row by row: copies, and the loops of elementwise nodes and reductions. */

/* Tell whether steps along an axis are longer than others: in the first operand that makes both, results first. */
static int longer(int n, int n_inputs, const long *steps, const long *others)
{
    for (int j = n_inputs; j < n_inputs + n; j++) {
        const int k = j < n ? j : j - n;
        if (steps[k] && others[k] && magnitude(steps[k]) != magnitude(others[k]))
            return magnitude(steps[k]) > magnitude(others[k]);
    }
    return 0;
}

/* Insert an axis behind those of longer steps. */
static void insert_axis(int n, int n_inputs, int count, long length, const long *steps, long *shape, long (*stride)[n])
{
    int at = count;
    for (; at > 0 && longer(n, n_inputs, steps, stride[at - 1]); at--) {
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
SHARED int walk(int n, int n_inputs, int ndim, const long *whole, const View *const *views, const long *fixed,
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
        insert_axis(n, n_inputs, count++, whole[axis], steps, shape, stride);
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
    while (axes > 1 && (!others || goes_on()) && next_row(2, axes - 1, shape, index, stride, p));
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

/* Compute a row by blocks; what lies otherwise than it expects is copied. The more operands, the shorter are the
   blocks, so that they fit on any stack. */
static void by_blocks(const Loop *loop, int way, long length, char *const *p, const long *s)
{
    const int n = loop->n;
    const long *const expected = loop->strides + way * n, *const sizes = loop->sizes;
    const long most = n > 16 ? (16 * BLOCK / n + 8) & -8 : BLOCK;
    char room[n][8 * most] __attribute__((aligned(64))), *q[n];
    for (long at = 0; at < length; at += most) {
        const long m = length - at < most ? length - at : most;
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
    const int axes = walk(n, loop->inputs, loop->ndim, whole, views, loop->fixed, shape, stride);
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
    while (axes > 1 && (!others || goes_on()) && next_row(n, axes - 1, shape, index, stride, p));
    if (others)
        come_back();
}
