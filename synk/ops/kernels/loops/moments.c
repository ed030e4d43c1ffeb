/* Mean and squared deviations of each channel: the first pass of batch norm, which comes after this file.

   x is seen as (outer, channels, inner), see batch_norm.c. Sums are made in REAL over blocks, of differences to
   a shift near the mean, and merged in double: as good as two passes. */

#ifndef MOMENTS_GEOMETRY
#define MOMENTS_GEOMETRY
typedef struct {
    long outer, channels, inner;
} Geometry;

/* Columns that are worked on at once, in four rows. */
#define STRIP (PIECE / 4 / (long)sizeof(REAL))
#endif

/* Add d = x - shift and d*d over `rows` rows to `sums` and `squares`, by column. */
INLINE void NAME(add_moments)(const REAL *restrict x, long rows, const long width, const REAL *restrict shift,
                              REAL *restrict sums, REAL *restrict squares)
{
    const REAL *end = x + rows * width;
    /* Four rows at once: an accumulator is loaded and stored once for all of them. */
    for (; x + 4 * width <= end; x += 4 * width)
        for (long first = 0; first < width; first += STRIP) {
            const long last = shorter(width, first + STRIP);
            prefetch(x + 4 * first, 4 * (last - first) * sizeof(REAL));
            INDEPENDENT
            for (long c = first; c < last; c++) {
                const REAL d0 = x[c] - shift[c], d1 = x[c + width] - shift[c];
                const REAL d2 = x[c + 2 * width] - shift[c], d3 = x[c + 3 * width] - shift[c];
                sums[c] += (d0 + d1) + (d2 + d3);
                squares[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
            }
        }
    for (; x < end; x += width)
        INDEPENDENT
        for (long c = 0; c < width; c++) {
            const REAL d = x[c] - shift[c];
            sums[c] += d;
            squares[c] += d * d;
        }
}

/* Merge a block of `rows` rows with the mean and the squared deviations of the `before` rows ahead of it
   (Chan, Golub and LeVeque, 1979). The mean so far is the shift of the next block: wherever the numbers lie,
   the squares are at most a few times what they contribute. */
INLINE void NAME(merge)(double before, double rows, long width, REAL *restrict shift, const REAL *restrict sums,
                        const REAL *restrict squares, double *restrict mean, double *restrict deviations)
{
    const double old = before / (before + rows), new = rows / (before + rows), between = old * rows;
    const double one_by_rows = 1 / rows; /* divisions would take as long as all the rest */
    INDEPENDENT
    for (long c = 0; c < width; c++) {
        const double own = shift[c] + sums[c] * one_by_rows, delta = own - mean[c];
        const double within = squares[c] - (double)sums[c] * sums[c] * one_by_rows;
        deviations[c] += (within < 0 ? 0 : within) + (before > 0 ? delta * delta * between : 0);
        mean[c] = (before > 0 ? mean[c] * old : 0) + own * new;
        const REAL next = mean[c];
        shift[c] = next - next == 0 ? next : 0; /* infinity would turn all that follows into NaN */
    }
}

/* Take the mean of a few rows as the shift of the first block: one row could be far from all others. */
INLINE void NAME(first_shift)(const REAL *restrict x, long rows, long width, REAL *restrict shift)
{
    for (long c = 0; c < width; c++)
        shift[c] = 0;
    for (long row = 0; row < rows; row++)
        for (long c = 0; c < width; c++)
            shift[c] += x[row * width + c] / rows;
    for (long c = 0; c < width; c++)
        shift[c] = shift[c] - shift[c] == 0 ? shift[c] : 0;
}

/* Moments of columns: blocks of rows. */
static void NAME(column_moments)(const REAL *x, long rows, long width, double *mean, double *deviations, REAL *work)
{
    REAL *shift = work, *sums = work + width, *squares = work + 2 * width;
    NAME(first_shift)(x, shorter(rows, LANES), width, shift);
    for (long row = 0; row < rows; row += BLOCK) {
        const long n = shorter(BLOCK, rows - row);
        __builtin_memset(sums, 0, 2 * width * sizeof(REAL));
        NAME(add_moments)(x + row * width, n, width, shift, sums, squares);
        NAME(merge)(row, n, width, shift, sums, squares, mean, deviations);
    }
}

/* Moments of one channel in planes: a plane is rows of LANES columns, and a rest. */
static void NAME(plane_moments)(const REAL *x, const Geometry *g, double *mean, double *deviations)
{
    REAL shift[LANES], total[2];
    double before = 0;
    NAME(first_shift)(x, shorter(g->inner, LANES), 1, shift);
    for (long plane = 0; plane < g->outer; plane++, x += g->channels * g->inner)
        for (long at = 0; at < g->inner; at += BLOCK * LANES) {
            const long n = shorter(BLOCK * LANES, g->inner - at), rows = n / LANES, rest = n - rows * LANES;
            REAL sums[LANES] = {0}, squares[LANES] = {0};
            for (int lane = 1; lane < LANES; lane++)
                shift[lane] = shift[0];
            NAME(add_moments)(x + at, rows, LANES, shift, sums, squares);
            NAME(add_moments)(x + at + rows * LANES, rest, 1, shift, sums, squares);
            total[0] = total[1] = 0;
            for (int lane = 0; lane < LANES; lane++) {
                total[0] += sums[lane];
                total[1] += squares[lane];
            }
            NAME(merge)(before, n, 1, shift, total, total + 1, mean, deviations);
            before += n;
        }
}
