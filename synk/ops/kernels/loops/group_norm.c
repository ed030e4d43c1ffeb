/* Group norm, forward and backward, one image after another: each is read from memory once, and from the cache
   after that.

   An image is seen as (outer, channels, inner): (pixels, channels, 1) where channels are the last axis, else
   (1, channels, pixels). Its moments by channel, of moments.c, are merged by group; the passes by channel, of
   channels.c, then take the numbers of a channel's group. */

/* Merge the moments of each group's channels into its mean, and one over the root of its variance plus eps. */
static void NAME(merge_groups)(const Geometry *g, long groups, double eps, const double *means, const double *deviations,
                               REAL *mean, REAL *inv_std)
{
    const long size = g->channels / groups;
    const double pixels = (double)g->outer * g->inner;
    for (long group = 0; group < groups; group++, means += size, deviations += size) {
        double total = 0, squares = 0;
        for (long c = 0; c < size; c++)
            total += means[c];
        const double center = total / size;
        for (long c = 0; c < size; c++)
            squares += deviations[c] + pixels * (means[c] - center) * (means[c] - center);
        mean[group] = pixels > 0 ? center : __builtin_nan("");
        inv_std[group] = 1 / __builtin_sqrt(squares / (pixels * size) + eps); /* 0 / 0 is NaN */
    }
}

/* Write the parameters of each channel, arrays of `width` numbers: mean, scale, beta. */
static void NAME(channels_of_groups)(long channels, long groups, long width, const REAL *mean, const REAL *inv_std,
                                     const REAL *gamma, const REAL *beta, REAL *parameters)
{
    const long size = channels / groups;
    for (long c = 0; c < channels; c++) {
        parameters[c] = mean[c / size];
        parameters[width + c] = gamma[c] * inv_std[c / size];
        parameters[2 * width + c] = beta[c];
    }
}

/* Forward. `doubles` holds 2 * channels numbers, `reals` 3 * width. */
void NAME(group_norm)(const REAL *x, const REAL *gamma, const REAL *beta, REAL *y, REAL *mean, REAL *inv_std,
                      long images, long outer, long channels, long inner, long groups, long width, double eps,
                      int relu, double *doubles, REAL *reals)
{
    const Geometry g = {outer, channels, inner};
    const long size = outer * channels * inner;
    for (long image = 0; image < images; image++, x += size, y += size, mean += groups, inv_std += groups) {
        __builtin_memset(doubles, 0, 2 * channels * sizeof(double));
        if (size > 0 && inner == 1)
            NAME(column_moments)(x, outer, channels, doubles, doubles + channels, reals);
        else if (size > 0)
            for (long c = 0; c < channels; c++)
                NAME(plane_moments)(x + c * inner, &g, doubles + c, doubles + channels + c);
        NAME(merge_groups)(&g, groups, eps, doubles, doubles + channels, mean, inv_std);
        NAME(channels_of_groups)(channels, groups, width, mean, inv_std, gamma, beta, reals);
        if (size > 0)
            NAME(finish)(0, x, reals, width, &g, relu, y);
    }
}

/* Backward: gx = inv_std * (gamma * g - mean(gamma * g) - (x - mean) * inv_std^2 * mean(gamma * g * (x - mean))),
   with means over a group. `doubles` holds 4 * channels numbers, `reals` 5 * width. */
void NAME(group_norm_gradient)(const REAL *gy, const REAL *x, const REAL *gamma, const REAL *beta, const REAL *mean,
                               const REAL *inv_std, REAL *gx, REAL *ggamma, REAL *gbeta, long images, long outer,
                               long channels, long inner, long groups, long width, int relu, double *doubles,
                               REAL *reals)
{
    const Geometry g = {outer, channels, inner};
    const long size = outer * channels * inner, members = channels / groups;
    const double count = (double)outer * inner * members;
    double *sums = doubles, *products = doubles + channels, *all_sums = doubles + 2 * channels,
           *all_products = doubles + 3 * channels;
    __builtin_memset(doubles, 0, 4 * channels * sizeof(double));
    for (long image = 0; size > 0 && image < images; image++) {
        __builtin_memset(doubles, 0, 2 * channels * sizeof(double));
        NAME(channels_of_groups)(channels, groups, width, mean, inv_std, gamma, beta, reals);
        /* The places of offset and slope serve as sums before they are known. */
        if (relu)
            NAME(products)(gy, x, &g, reals, width, 1, doubles, reals + 3 * width);
        else
            NAME(products)(gy, x, &g, reals, width, 0, doubles, reals + 3 * width);
        for (long first = 0; first < channels; first += members) {
            const double scale = inv_std[first / members];
            double total = 0, product = 0;
            for (long c = first; c < first + members; c++) {
                total += gamma[c] * sums[c];
                product += gamma[c] * products[c];
                all_sums[c] += sums[c];
                all_products[c] += products[c] * scale;
            }
            for (long c = first; c < first + members; c++) {
                reals[3 * width + c] = scale * total / count;
                reals[4 * width + c] = scale * scale * scale * product / count;
            }
        }
        NAME(finish)(gy, x, reals, width, &g, relu, gx);
        gy += size, x += size, gx += size, mean += groups, inv_std += groups;
    }
    for (long c = 0; c < channels; c++) {
        gbeta[c] = all_sums[c];
        ggamma[c] = all_products[c];
    }
}
