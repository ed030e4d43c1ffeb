/* Passes over images by channel, of which batch norm and group norm consist beside the sums of moments.c: that
   file comes before this one, and batch_norm.c or group_norm.c after it.

   x is seen as (outer, channels, inner), see batch_norm.c. */

/* Normalise with the arithmetic that backward repeats to find where the result was positive. */
#define NORMALISED(x, mean, scale, beta) (((x) - (mean)) * (scale) + (beta))

/* Normalise n elements; `step` is 1 if each has parameters of its own, 0 if they share them. */
INLINE void NAME(normalise)(long n, const REAL *restrict x, const REAL *restrict mean, const REAL *restrict scale,
                            const REAL *restrict beta, const int step, const int relu, REAL *restrict y)
{
    INDEPENDENT
    for (long i = 0; i < n; i++) {
        const REAL value = NORMALISED(x[i], mean[i * step], scale[i * step], beta[i * step]);
        y[i] = relu && value < 0 ? 0 : value; /* NaN stays */
    }
}

/* The gradient of n elements. */
INLINE void NAME(differentiate)(long n, const REAL *restrict gy, const REAL *restrict x, const REAL *restrict mean,
                                const REAL *restrict scale, const REAL *restrict beta, const REAL *restrict offset,
                                const REAL *restrict slope, const int step, const int relu, REAL *restrict gx)
{
    INDEPENDENT
    for (long i = 0; i < n; i++) {
        const long c = i * step;
        const REAL passes = NORMALISED(x[i], mean[c], scale[c], beta[c]) > 0 ? gy[i] : 0;
        const REAL g = relu ? passes : gy[i];
        gx[i] = scale[c] * g - offset[c] - (x[i] - mean[c]) * slope[c];
    }
}

/* Repeat parameters of `channels` columns until there are `width`. */
static void NAME(repeat)(REAL *parameters, long channels, long width)
{
    for (long c = channels; c < width; c++)
        parameters[c] = parameters[c - channels];
}

/* Do the second pass, forward where gy is NULL. `parameters` are arrays of `width` numbers each: mean, scale,
   beta, and backward offset and slope. */
INLINE void NAME(second_pass)(const REAL *gy, const REAL *x, const REAL *parameters, long width, const Geometry *g,
                              const int step, const int relu, REAL *result)
{
    const long total = g->outer * g->channels * g->inner, run = step ? total : g->inner;
    const int large = total * (long)sizeof(REAL) > LARGE;
    REAL waiting[PIECE / sizeof(REAL)] __attribute__((aligned(64)));
    for (long start = 0, end; start < total; start = end) {
        /* A piece ends where a line of the result does, or with the channel. */
        const long odd = ((unsigned long)(result + start) & 63) / sizeof(REAL), channel = start / run;
        end = shorter((channel + 1) * run, start - odd + PIECE / (long)sizeof(REAL));
        const long n = end - start;
        const REAL *p = parameters + (step ? start : channel) % g->channels;
        REAL *to = large ? waiting : result + start;
        prefetch(x + start, n * sizeof(REAL));
        if (gy)
            prefetch(gy + start, n * sizeof(REAL));
        if (gy)
            NAME(differentiate)(n, gy + start, x + start, p, p + width, p + 2 * width, p + 3 * width, p + 4 * width,
                                step, relu, to);
        else
            NAME(normalise)(n, x + start, p, p + width, p + 2 * width, step, relu, to);
        if (large)
            stream(result + start, waiting, n * sizeof(REAL));
    }
    end_stream();
}

/* The four forms of the second pass, each compiled on its own. */
static void NAME(finish)(const REAL *gy, const REAL *x, REAL *parameters, long width, const Geometry *g, int relu,
                         REAL *result)
{
    if (g->inner == 1)
        for (int k = 0; k < (gy ? 5 : 3); k++)
            NAME(repeat)(parameters + k * width, g->channels, width);
#define FORM(GY, STEP, RELU) NAME(second_pass)(GY, x, parameters, width, g, STEP, RELU, result)
    if (gy && g->inner == 1)
        relu ? FORM(gy, 1, 1) : FORM(gy, 1, 0);
    else if (gy)
        relu ? FORM(gy, 0, 1) : FORM(gy, 0, 0);
    else if (g->inner == 1)
        relu ? FORM((const REAL *)0, 1, 1) : FORM((const REAL *)0, 1, 0);
    else
        relu ? FORM((const REAL *)0, 0, 1) : FORM((const REAL *)0, 0, 0);
#undef FORM
}

/* Add g and g * (x - mean) over rows, by column, where g is gy, with relu where the result was positive. */
INLINE void NAME(add_products)(const REAL *restrict gy, const REAL *restrict x, long rows, const long width,
                               const REAL *restrict mean, const REAL *restrict scale, const REAL *restrict beta,
                               const int step, const int relu, REAL *restrict sums, REAL *restrict products)
{
#define TERM(at)                                                                                                       \
    const REAL x##at = x[c + at * width] - k, y##at = gy[c + at * width];                                              \
    const REAL passes##at = x##at * s + b > 0 ? y##at : 0, g##at = relu ? passes##at : y##at;
    const REAL *end = x + rows * width;
    for (; x + 4 * width <= end; x += 4 * width, gy += 4 * width)
        for (long first = 0; first < width; first += STRIP) {
            const long last = shorter(width, first + STRIP);
            prefetch(x + 4 * first, 4 * (last - first) * sizeof(REAL));
            prefetch(gy + 4 * first, 4 * (last - first) * sizeof(REAL));
            INDEPENDENT
            for (long c = first; c < last; c++) {
                const REAL k = mean[c * step], s = scale[c * step], b = beta[c * step];
                TERM(0) TERM(1) TERM(2) TERM(3)
                sums[c] += (g0 + g1) + (g2 + g3);
                products[c] += (g0 * x0 + g1 * x1) + (g2 * x2 + g3 * x3);
            }
        }
    for (; x < end; x += width, gy += width)
        INDEPENDENT
        for (long c = 0; c < width; c++) {
            const REAL k = mean[c * step], s = scale[c * step], b = beta[c * step];
            TERM(0)
            sums[c] += g0;
            products[c] += g0 * x0;
        }
#undef TERM
}

/* Sums of columns; `work` holds 2 * channels numbers. */
INLINE void NAME(column_products)(const REAL *gy, const REAL *x, long rows, long width, const REAL *parameters,
                                  long gap, const int relu, double *totals, REAL *work)
{
    for (long row = 0; row < rows; row += BLOCK) {
        __builtin_memset(work, 0, 2 * width * sizeof(REAL));
        NAME(add_products)(gy + row * width, x + row * width, shorter(BLOCK, rows - row), width, parameters,
                           parameters + gap, parameters + 2 * gap, 1, relu, work, work + width);
        for (long c = 0; c < 2 * width; c++)
            totals[c] += work[c];
    }
}

/* Sums of one channel in planes. */
INLINE void NAME(plane_products)(const REAL *gy, const REAL *x, const Geometry *g, const REAL *parameters, long gap,
                                 const int relu, double *total, double *product)
{
    const REAL *mean = parameters, *scale = parameters + gap, *beta = parameters + 2 * gap;
    for (long plane = 0; plane < g->outer; plane++, x += g->channels * g->inner, gy += g->channels * g->inner)
        for (long at = 0; at < g->inner; at += BLOCK * LANES) {
            const long n = shorter(BLOCK * LANES, g->inner - at), rows = n / LANES, done = at + rows * LANES;
            REAL sums[LANES] = {0}, products[LANES] = {0};
            NAME(add_products)(gy + at, x + at, rows, LANES, mean, scale, beta, 0, relu, sums, products);
            NAME(add_products)(gy + done, x + done, n - rows * LANES, 1, mean, scale, beta, 0, relu, sums, products);
            for (int lane = 0; lane < LANES; lane++) {
                *total += sums[lane];
                *product += products[lane];
            }
        }
}

INLINE void NAME(products)(const REAL *gy, const REAL *x, const Geometry *g, const REAL *parameters, long gap,
                           const int relu, double *totals, REAL *work)
{
    if (g->inner == 1)
        NAME(column_products)(gy, x, g->outer, g->channels, parameters, gap, relu, totals, work);
    else
        for (long c = 0; c < g->channels; c++)
            NAME(plane_products)(gy + c * g->inner, x + c * g->inner, g, parameters + c, gap, relu, totals + c,
                                 totals + g->channels + c);
}
