/* Cross-entropy of softmax, forward and backward. Both return the first row whose label is no column, or -1. */

VECTORS REAL EXP(REAL);

/* Return the largest of n numbers, minus infinity for none; a NaN is passed over. */
INLINE REAL NAME(largest)(const REAL *x, long n)
{
    REAL lanes[WIDE];
    for (int lane = 0; lane < WIDE; lane++)
        lanes[lane] = -__builtin_inf();
    long at = 0;
    for (; at + WIDE <= n; at += WIDE)
        for (int lane = 0; lane < WIDE; lane++)
            lanes[lane] = x[at + lane] > lanes[lane] ? x[at + lane] : lanes[lane];
    for (; at < n; at++)
        lanes[0] = x[at] > lanes[0] ? x[at] : lanes[0];
    for (int lane = 1; lane < WIDE; lane++)
        lanes[0] = lanes[lane] > lanes[0] ? lanes[lane] : lanes[0];
    return lanes[0];
}

/* log_sum = log(sum(exp(x))) and loss = log_sum - x[label] of each row, by way of the differences to the largest. */
long NAME(cross_entropy)(const REAL *x, const long *labels, REAL *losses, REAL *log_sum, long rows, long width)
{
    for (long row = 0; row < rows; row++, x += width) {
        const long label = labels[row];
        if (label < 0 || label >= width)
            return row;
        const REAL highest = NAME(largest)(x, width);
        const REAL anchor = highest - highest == 0 ? highest : 0; /* infinity minus itself would be NaN */
        double total;
        SUM(total, i, width, EXP(x[i] - anchor));
        const double log_total = __builtin_log(total);
        losses[row] = log_total - (x[label] - anchor);
        log_sum[row] = anchor + log_total;
    }
    return -1;
}

/* gx = g * (softmax(x) - [column is the label]) of each row. */
long NAME(cross_entropy_gradient)(const REAL *g, const REAL *x, const long *labels, const REAL *log_sum, REAL *gx,
                                  long rows, long width)
{
    for (long row = 0; row < rows; row++, x += width, gx += width) {
        const long label = labels[row];
        if (label < 0 || label >= width)
            return row;
        const REAL anchor = log_sum[row];
        double total;
        INDEPENDENT
        for (long i = 0; i < width; i++)
            gx[i] = EXP(x[i] - anchor);
        /* 1, were it not that a log_sum of 1e4 is rounded to 5e-4 in float. */
        SUM(total, i, width, gx[i]);
        const REAL scale = g[row] / total;
        INDEPENDENT
        for (long i = 0; i < width; i++)
            gx[i] *= scale;
        gx[label] -= g[row];
    }
    return -1;
}
