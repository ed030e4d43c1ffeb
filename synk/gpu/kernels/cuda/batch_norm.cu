/* Batch norm: sums by channel in parts, what follows from them, then results.

   x is seen as (outer, channels, inner): inner is 1 where channels are the last axis ("columns"), else the pixels
   of an image ("planes"). blockIdx.y is the part, a split, of all rows, or of all units: a unit is up to `segment`
   elements of a plane, for a warp. PLANES tells which of both:

       false: lanes along channels, threadIdx.y along rows     blockIdx.x: which channels
       true:  blockDim.x is 1, warps along units               blockIdx.x: the channel */

struct Geometry {
    Length outer, channels, inner, segment;
};

#define GEOMETRY Length outer, Length channels, Length inner, Length segment
#define GIVEN {outer, channels, inner, segment}

enum {
    P = PLANES ? 1 : V, /* channels of a pack */
    PAIRS = V > 4 ? 2 : ROWS, /* as ROWS, of two arrays: more do not fit into the registers */
};

/* Two blocks fit into a multiprocessor, at least: one reads while the other adds up. */
#define HALF_KERNEL extern "C" __global__ void __launch_bounds__(256, 2)

/* Call visit(place of a pack, from there to the next, number of packs, at most N) for all packs of a thread. */
template <int N, class Visit> INLINE void along(Length start, Length end, Length step, Visit visit)
{
    for (Length at = start; at < end; at += N * step) {
        const Length left = (end - at + step - 1) / step;
        visit(at, step, (int)shorter(N, left));
    }
}

INLINE Length segments_of(const Geometry &g)
{
    return PLANES ? (g.inner + g.segment - 1) / g.segment : 1;
}

/* The rows, or units, of this block. */
INLINE Rows mine_of(const Geometry &g)
{
    return rows_of_split(g.outer * segments_of(g));
}

/* Where a row, or a unit, starts in x, and how many values of the channel are before it. */
INLINE Length place_of(const Geometry &g, Length channel, Length unit)
{
    const Length segments = segments_of(g);
    return PLANES ? (unit / segments * g.channels + channel) * g.inner + unit % segments * g.segment
                  : unit * g.channels + channel;
}

INLINE Length values_before(const Geometry &g, Length unit)
{
    const Length segments = segments_of(g);
    return PLANES ? unit / segments * g.inner + unit % segments * g.segment : unit;
}

template <int N, class Visit> INLINE void walk(const Geometry &g, Length channel, Visit visit)
{
    const Rows mine = mine_of(g);
    if (!PLANES) {
        along<N>((mine.from + threadIdx.y) * g.channels + channel, mine.to * g.channels, blockDim.y * g.channels, visit);
        return;
    }
    const Length segments = segments_of(g);
    const int warps = blockDim.y / LANES, warp = threadIdx.y / LANES, lane = threadIdx.y % LANES;
    for (Length unit = mine.from + warp; unit < mine.to; unit += warps) {
        const Length start = place_of(g, channel, unit), rest = g.inner - unit % segments * g.segment;
        along<N>(start + lane * V, start + shorter(rest, g.segment), LANES * V, visit);
    }
}

INLINE Length first_channel()
{
    return PLANES ? blockIdx.x : ((Length)blockIdx.x * blockDim.x + threadIdx.x) * V;
}

/* Less infinity, all would be NaN, and the mean too. */
INLINE REAL finite_or_zero(REAL x)
{
    return x - x == 0 ? x : 0;
}

/* Moments of each channel in each split: the number of values, their mean, and their squared deviations from it,
   each an array of (splits, channels). A thread adds up distances from the mean of its first packs, so no digits
   are lost wherever values lie, and no division is made for each; the block's are those from the split's first
   value. Infinity stays the mean; the squares are NaN then. */
HALF_KERNEL moments(const STORED *x, GEOMETRY, double *partial)
{
    const Geometry g = GIVEN;
    __shared__ Sums shared[P][THREADS];
    const Length channel = first_channel(), gap = gridDim.y * g.channels;
    const Rows mine = mine_of(g);
    const double count = values_before(g, mine.to) - values_before(g, mine.from);
    REAL pivot[P] = {}, first[V] = {};
    Sums found[P] = {};
    if (channel < g.channels && count) {
        Length packs = 0;
        walk<ROWS>(g, channel, [&](Length at, Length step, int n) {
            REAL values[ROWS][V], sums[P] = {}, squares[P] = {};
#pragma unroll
            for (int k = 0; k < ROWS; k++)
                if (k < n)
                    load(x + at + k * step, values[k]);
            if (!packs) {
#pragma unroll
                for (int k = 0; k < ROWS; k++)
#pragma unroll
                    for (int v = 0; v < V; v++)
                        pivot[PLANES ? 0 : v] += k < n ? values[k][v] : 0;
#pragma unroll
                for (int p = 0; p < P; p++)
                    pivot[p] = finite_or_zero(pivot[p] / (n * (V / P)));
            }
            packs += n;
#pragma unroll
            for (int k = 0; k < ROWS; k++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    const int p = PLANES ? 0 : v;
                    const REAL distance = k < n ? values[k][v] - pivot[p] : 0;
                    sums[p] += distance;
                    squares[p] += distance * distance;
                }
#pragma unroll
            for (int p = 0; p < P; p++)
                found[p] = merged(found[p], {(double)sums[p], (double)squares[p]});
        });
        load(x + place_of(g, channel, mine.from), first);
#pragma unroll
        for (int p = 0; p < P; p++) {
            first[p] = finite_or_zero(first[p]);
            const double off = (double)pivot[p] - first[p], moved = packs * (V / P) * off;
            found[p] = {found[p].first + moved, found[p].second + off * (2 * found[p].first + moved)};
        }
    }
    merge_block(found, shared);
    if (threadIdx.y == 0 && channel < g.channels)
#pragma unroll
        for (int p = 0; p < P; p++) {
            double *to = partial + blockIdx.y * g.channels + channel + p;
            const double mean = count ? found[p].first / count : 0, within = found[p].second - found[p].first * mean;
            to[0] = count;
            to[gap] = first[p] + mean;
            to[2 * gap] = within < 0 ? 0 : within;
        }
}

/* Normalise with the arithmetic that backward repeats to find where the result was positive. */
#define NORMALISED(x, mean, scale, beta) (((x) - (mean)) * (scale) + (beta))

KERNEL normalise(const STORED *x, const REAL *gamma, const REAL *beta, const REAL *mean, const REAL *inv_std,
                 GEOMETRY, int relu, STORED *y)
{
    const Geometry g = GIVEN;
    const Length channel = first_channel();
    if (channel >= g.channels)
        return;
    REAL centre[P], scale[P], shift[P];
    load_affine(gamma, beta, mean, inv_std, channel, centre, scale, shift);
    walk<ROWS>(g, channel, [&](Length at, Length step, int n) {
        REAL pack[ROWS][V];
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            if (k < n)
                load(x + at + k * step, pack[k]);
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                const int p = PLANES ? 0 : v;
                const REAL value = NORMALISED(pack[k][v], centre[p], scale[p], shift[p]);
                pack[k][v] = relu && value < 0 ? 0 : value; /* NaN stays */
            }
            if (k < n)
                store(pack[k], y + at + k * step);
        }
    });
}

/* Sums of g and of g * (x - mean) in each split, where g is gy, with relu where the result was positive. */
HALF_KERNEL products(const STORED *gy, const STORED *x, const REAL *gamma, const REAL *beta, const REAL *mean,
                const REAL *inv_std, GEOMETRY, int relu, double *partial)
{
    const Geometry g = GIVEN;
    __shared__ Sums shared[P][THREADS];
    const Length channel = first_channel(), gap = gridDim.y * g.channels;
    Sums found[P] = {};
    if (channel < g.channels) {
        REAL centre[P], scale[P], shift[P];
        load_affine(gamma, beta, mean, inv_std, channel, centre, scale, shift);
        walk<PAIRS>(g, channel, [&](Length at, Length step, int n) {
            REAL values[PAIRS][V], gradients[PAIRS][V], sums[P] = {}, products[P] = {};
#pragma unroll
            for (int k = 0; k < PAIRS; k++)
                if (k < n) {
                    load(x + at + k * step, values[k]);
                    load(gy + at + k * step, gradients[k]);
                }
#pragma unroll
            for (int k = 0; k < PAIRS; k++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    const int p = PLANES ? 0 : v;
                    const bool passes = !relu || NORMALISED(values[k][v], centre[p], scale[p], shift[p]) > 0;
                    if (k < n && passes) {
                        sums[p] += gradients[k][v];
                        products[p] += gradients[k][v] * (values[k][v] - centre[p]);
                    }
                }
#pragma unroll
            for (int p = 0; p < P; p++)
                found[p] = merged(found[p], {(double)sums[p], (double)products[p]});
        });
    }
    merge_block(found, shared);
    if (threadIdx.y == 0 && channel < g.channels)
#pragma unroll
        for (int p = 0; p < P; p++) {
            double *to = partial + blockIdx.y * g.channels + channel + p;
            to[0] = found[p].first;
            to[gap] = found[p].second;
        }
}

/* The gradient for x; `offset` and `slope` are what `totals` below makes. */
HALF_KERNEL differentiate(const STORED *gy, const STORED *x, const REAL *gamma, const REAL *beta, const REAL *mean,
                     const REAL *inv_std, const REAL *offset, const REAL *slope, GEOMETRY, int relu, STORED *gx)
{
    const Geometry g = GIVEN;
    const Length channel = first_channel();
    if (channel >= g.channels)
        return;
    REAL centre[P], scale[P], shift[P], less[P], tilt[P];
    load_affine(gamma, beta, mean, inv_std, channel, centre, scale, shift);
    load_parameters(offset + channel, less);
    load_parameters(slope + channel, tilt);
    walk<PAIRS>(g, channel, [&](Length at, Length step, int n) {
        REAL values[PAIRS][V], gradients[PAIRS][V];
#pragma unroll
        for (int k = 0; k < PAIRS; k++)
            if (k < n) {
                load(x + at + k * step, values[k]);
                load(gy + at + k * step, gradients[k]);
            }
#pragma unroll
        for (int k = 0; k < PAIRS; k++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                const int p = PLANES ? 0 : v;
                const bool passes = !relu || NORMALISED(values[k][v], centre[p], scale[p], shift[p]) > 0;
                const REAL gradient = passes ? gradients[k][v] : 0;
                gradients[k][v] = scale[p] * (gradient - less[p] - (values[k][v] - centre[p]) * tilt[p]);
            }
            if (k < n)
                store(gradients[k], gx + at + k * step);
        }
    });
}

/* Merge the splits: a warp for each channel, which asks for several splits at once. Means are taken from that of
   the first split, as values are above. */
KERNEL statistics(const double *partial, Length splits, Length channels, double eps, REAL *mean, REAL *inv_std)
{
    const Length channel = (Length)blockIdx.x * blockDim.y + threadIdx.y, gap = splits * channels;
    if (channel >= channels)
        return;
    const double pivot = partial[gap + channel], first = pivot - pivot == 0 ? pivot : 0;
    Sums all = {}, within = {};
#pragma unroll 8
    for (Length split = threadIdx.x; split < splits; split += LANES) {
        const double *from = partial + split * channels + channel;
        const double n = from[0], distance = from[gap] - first;
        all = merged(all, {n * distance, n * distance * distance});
        within = merged(within, {n, from[2 * gap]});
    }
    all = merge_warp(all);
    within = merge_warp(within);
    if (threadIdx.x == 0) {
        const double off = all.first / within.first, between = all.second - all.first * off;
        mean[channel] = first + off;
        inv_std[channel] = 1 / sqrt((within.second + (between < 0 ? 0 : between)) / within.first + eps);
    }
}

KERNEL totals(const double *partial, Length splits, Length channels, double count, const REAL *inv_std, REAL *ggamma,
              REAL *gbeta, REAL *offset, REAL *slope)
{
    const Length channel = (Length)blockIdx.x * blockDim.y + threadIdx.y, gap = splits * channels;
    Sums all = {};
    if (channel >= channels)
        return;
#pragma unroll 8
    for (Length split = threadIdx.x; split < splits; split += LANES) {
        const double *from = partial + split * channels + channel;
        all = merged(all, {from[0], from[gap]});
    }
    all = merge_warp(all);
    if (threadIdx.x == 0) {
        const double over = inv_std[channel];
        gbeta[channel] = all.first;
        ggamma[channel] = all.second * over;
        offset[channel] = all.first / count;
        slope[channel] = all.second / count * over * over;
    }
}
