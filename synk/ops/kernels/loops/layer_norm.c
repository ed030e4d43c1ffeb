/* Layer norm, forward and backward: a row is read from memory once, and from the cache after that. */

/* y = (x - mean) * inv_std * gamma + beta; each row has a mean and an inv_std. */
void NAME(layer_norm)(const REAL *x, const REAL *gamma, const REAL *beta, REAL *y, REAL *mean, REAL *inv_std, long rows,
                      long width, double eps)
{
    for (long row = 0; row < rows; row++, x += width, y += width) {
        double total, rest, squares;
        SUM(total, i, width, x[i]);
        const REAL near = total / width; /* a sum of large numbers, too coarse for small differences */
        SUM(rest, i, width, x[i] - near);
        const REAL center = near + rest / width;
        SUM(squares, i, width, (x[i] - center) * (x[i] - center));
        const REAL scale = 1 / __builtin_sqrt(squares / width + eps);
        INDEPENDENT
        for (long i = 0; i < width; i++)
            y[i] = (x[i] - center) * scale * gamma[i] + beta[i];
        mean[row] = center;
        inv_std[row] = scale;
    }
}

/* With h = (x - mean) * inv_std: gx = inv_std * (g - mean(g) - h * mean(g * h)) by row, where g = gy * gamma; and
   ggamma and gbeta, the sums of gy * h and gy over rows. `doubles` and `reals` hold 2 * width numbers each. */
void NAME(layer_norm_gradient)(const REAL *gy, const REAL *x, const REAL *gamma, const REAL *mean, const REAL *inv_std,
                               REAL *gx, REAL *ggamma, REAL *gbeta, long rows, long width, double *doubles, REAL *reals)
{
    __builtin_memset(doubles, 0, 2 * width * sizeof(double));
    for (long block = 0; block < rows; block += BLOCK) {
        REAL *restrict products = reals, *restrict sums = reals + width;
        __builtin_memset(reals, 0, 2 * width * sizeof(REAL));
        for (long row = block; row < shorter(rows, block + BLOCK); row++, x += width, gy += width, gx += width) {
            const REAL center = mean[row], scale = inv_std[row];
            double total, product;
            SUM(total, i, width, gy[i] * gamma[i]);
            SUM(product, i, width, gy[i] * gamma[i] * ((x[i] - center) * scale));
            const REAL offset = total / width, slope = product / width;
            INDEPENDENT
            for (long i = 0; i < width; i++) {
                const REAL h = (x[i] - center) * scale;
                gx[i] = scale * (gy[i] * gamma[i] - offset - h * slope);
                products[i] += gy[i] * h;
                sums[i] += gy[i];
            }
        }
        for (long i = 0; i < 2 * width; i++)
            doubles[i] += reals[i];
    }
    for (long i = 0; i < width; i++) {
        ggamma[i] = doubles[i];
        gbeta[i] = doubles[width + i];
    }
}
