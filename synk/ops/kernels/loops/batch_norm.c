/* Batch norm, forward and backward, in two passes each: sums by channel, then results.

   x is seen as (outer, channels, inner): inner is 1 where channels are the last axis ("columns"), else the
   pixels of an image ("planes"). The sums of forward are in moments.c, all other passes in channels.c. */

/* Forward. `doubles` holds 2 * channels numbers, `reals` 3 * width. */
void NAME(batch_norm)(const REAL *x, const REAL *gamma, const REAL *beta, REAL *y, REAL *mean, REAL *inv_std,
                      long outer, long channels, long inner, long width, double eps, int relu, double *doubles,
                      REAL *reals)
{
    const Geometry g = {outer, channels, inner};
    const double count = (double)outer * inner;
    if (channels == 0)
        return;
    double *means = doubles, *deviations = doubles + channels;
    __builtin_memset(doubles, 0, 2 * channels * sizeof(double));
    if (count > 0 && inner == 1)
        NAME(column_moments)(x, outer, channels, means, deviations, reals);
    else if (count > 0)
        for (long c = 0; c < channels; c++)
            NAME(plane_moments)(x + c * inner, &g, means + c, deviations + c);
    for (long c = 0; c < channels; c++) {
        mean[c] = count > 0 ? means[c] : __builtin_nan("");
        inv_std[c] = 1 / __builtin_sqrt(deviations[c] / count + eps); /* 0 / 0 is NaN */
        reals[c] = mean[c];
        reals[width + c] = gamma[c] * inv_std[c];
        reals[2 * width + c] = beta[c];
    }
    if (count > 0)
        NAME(finish)(0, x, reals, width, &g, relu, y);
}

/* Backward: gx = scale * (g - mean(g) - (x - mean) * inv_std^2 * mean(g * (x - mean))). `doubles` holds
   2 * channels numbers, `reals` 5 * width. */
void NAME(batch_norm_gradient)(const REAL *gy, const REAL *x, const REAL *gamma, const REAL *beta, const REAL *mean,
                               const REAL *inv_std, REAL *gx, REAL *ggamma, REAL *gbeta, long outer, long channels,
                               long inner, long width, int relu, double *doubles, REAL *reals)
{
    const Geometry g = {outer, channels, inner};
    const double count = (double)outer * inner;
    if (channels == 0)
        return;
    __builtin_memset(doubles, 0, 2 * channels * sizeof(double));
    for (long c = 0; c < channels; c++) {
        reals[c] = mean[c];
        reals[width + c] = gamma[c] * inv_std[c];
        reals[2 * width + c] = beta[c];
    }
    /* The places of offset and slope serve as sums before they are known. */
    if (count > 0 && relu)
        NAME(products)(gy, x, &g, reals, width, 1, doubles, reals + 3 * width);
    else if (count > 0)
        NAME(products)(gy, x, &g, reals, width, 0, doubles, reals + 3 * width);
    for (long c = 0; c < channels; c++) {
        const double total = doubles[c], product = doubles[channels + c], scale = reals[width + c];
        gbeta[c] = total;
        ggamma[c] = count ? product * inv_std[c] : 0; /* of nothing inv_std is NaN */
        reals[3 * width + c] = scale * total / count;
        reals[4 * width + c] = scale * product / count * inv_std[c] * inv_std[c];
    }
    if (count > 0)
        NAME(finish)(gy, x, reals, width, &g, relu, gx);
}
