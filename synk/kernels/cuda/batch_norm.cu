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
};

/* Call visit(place of a pack, from there to the next, number of packs, at most ROWS) for all packs of a thread. */
template <class Visit> INLINE void along(Length start, Length end, Length step, Visit visit)
{
    for (Length at = start; at < end; at += ROWS * step) {
        const Length left = (end - at + step - 1) / step;
        visit(at, step, (int)shorter(ROWS, left));
    }
}

template <class Visit> INLINE void walk(const Geometry &g, Length channel, Visit visit)
{
    if (!PLANES) {
        const Rows rows = rows_of_split(g.outer);
        along((rows.from + threadIdx.y) * g.channels + channel, rows.to * g.channels, blockDim.y * g.channels, visit);
        return;
    }
    const Length segments = (g.inner + g.segment - 1) / g.segment;
    const Rows units = rows_of_split(g.outer * segments);
    const int warps = blockDim.y / LANES, warp = threadIdx.y / LANES, lane = threadIdx.y % LANES;
    for (Length unit = units.from + warp; unit < units.to; unit += warps) {
        const Length first = unit % segments * g.segment, plane = unit / segments * g.channels + channel;
        along(plane * g.inner + first + lane * V, plane * g.inner + shorter(g.inner, first + g.segment), LANES * V,
              visit);
    }
}

INLINE Length first_channel()
{
    return PLANES ? blockIdx.x : ((Length)blockIdx.x * blockDim.x + threadIdx.x) * V;
}

/* A number of values, their mean, and their squared deviations from it. */
struct Moments {
    double n, mean, squares;
};

/* Chan, Golub and LeVeque (1979). Infinity stays the mean; the squares are NaN then. */
INLINE Moments merged(Moments a, Moments b)
{
    if (a.n == 0 || b.n == 0)
        return a.n == 0 ? b : a;
    const double n = a.n + b.n, old = a.n / n, part = b.n / n, delta = b.mean - a.mean;
    return {n, a.mean * old + b.mean * part, a.squares + b.squares + delta * delta * a.n * part};
}

/* The moments of n values, about their own mean: wherever they lie, no digits are lost. */
template <int N> INLINE Moments moments_of(const REAL (&x)[N], int n)
{
    REAL total = 0, sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < N; k++)
        total += k < n ? x[k] : 0;
    REAL shift = total / n;
    if (shift - shift != 0)
        shift = 0; /* less infinity, all would be NaN, and the mean too */
#pragma unroll
    for (int k = 0; k < N; k++) {
        const REAL deviation = k < n ? x[k] - shift : 0;
        sum += deviation;
        squares += deviation * deviation;
    }
    const double within = squares - (double)sum * sum / n;
    return {(double)n, shift + (double)sum / n, within < 0 ? 0 : within};
}

/* Moments of each channel in each split: three numbers, each an array of (splits, channels). */
KERNEL moments(const STORED *x, GEOMETRY, double *partial)
{
    const Geometry g = GIVEN;
    __shared__ Moments shared[THREADS];
    const Length channel = first_channel(), gap = gridDim.y * g.channels;
    constexpr int N = PLANES ? ROWS * V : ROWS;
    Moments found[P] = {};
    if (channel < g.channels)
        walk(g, channel, [&](Length at, Length step, int n) {
            REAL values[P][N], pack[V];
#pragma unroll
            for (int k = 0; k < ROWS; k++) {
                if (k < n)
                    load(x + at + k * step, pack);
#pragma unroll
                for (int v = 0; v < V; v++)
                    values[PLANES ? 0 : v][PLANES ? k * V + v : k] = k < n ? pack[v] : 0;
            }
#pragma unroll
            for (int p = 0; p < P; p++)
                found[p] = merged(found[p], moments_of(values[p], PLANES ? n * V : n));
        });
    for (int p = 0; p < P; p++) {
        const Moments all = merge_block(found[p], shared);
        if (threadIdx.y == 0 && channel < g.channels) {
            double *to = partial + blockIdx.y * g.channels + channel + p;
            to[0] = all.n;
            to[gap] = all.mean;
            to[2 * gap] = all.squares;
        }
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
#pragma unroll
    for (int p = 0; p < P; p++) {
        centre[p] = mean[channel + p];
        scale[p] = gamma[channel + p] * inv_std[channel + p];
        shift[p] = beta[channel + p];
    }
    walk(g, channel, [&](Length at, Length step, int n) {
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
KERNEL products(const STORED *gy, const STORED *x, const REAL *gamma, const REAL *beta, const REAL *mean,
                const REAL *inv_std, GEOMETRY, int relu, double *partial)
{
    const Geometry g = GIVEN;
    __shared__ Sums shared[THREADS];
    const Length channel = first_channel(), gap = gridDim.y * g.channels;
    Sums found[P] = {};
    if (channel < g.channels) {
        REAL centre[P], scale[P], shift[P];
#pragma unroll
        for (int p = 0; p < P; p++) {
            centre[p] = mean[channel + p];
            scale[p] = gamma[channel + p] * inv_std[channel + p];
            shift[p] = beta[channel + p];
        }
        walk(g, channel, [&](Length at, Length step, int n) {
            REAL values[ROWS][V], gradients[ROWS][V], sums[P] = {}, products[P] = {};
#pragma unroll
            for (int k = 0; k < ROWS; k++)
                if (k < n) {
                    load(x + at + k * step, values[k]);
                    load(gy + at + k * step, gradients[k]);
                }
#pragma unroll
            for (int k = 0; k < ROWS; k++)
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
    for (int p = 0; p < P; p++) {
        const Sums all = merge_block(found[p], shared);
        if (threadIdx.y == 0 && channel < g.channels) {
            double *to = partial + blockIdx.y * g.channels + channel + p;
            to[0] = all.first;
            to[gap] = all.second;
        }
    }
}

/* The gradient for x; `offset` and `slope` are what `totals` below makes. */
KERNEL differentiate(const STORED *gy, const STORED *x, const REAL *gamma, const REAL *beta, const REAL *mean,
                     const REAL *inv_std, const REAL *offset, const REAL *slope, GEOMETRY, int relu, STORED *gx)
{
    const Geometry g = GIVEN;
    const Length channel = first_channel();
    if (channel >= g.channels)
        return;
    REAL centre[P], scale[P], shift[P], less[P], tilt[P];
#pragma unroll
    for (int p = 0; p < P; p++) {
        centre[p] = mean[channel + p];
        scale[p] = gamma[channel + p] * inv_std[channel + p];
        shift[p] = beta[channel + p];
        less[p] = offset[channel + p];
        tilt[p] = slope[channel + p];
    }
    walk(g, channel, [&](Length at, Length step, int n) {
        REAL values[ROWS][V], gradients[ROWS][V];
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            if (k < n) {
                load(x + at + k * step, values[k]);
                load(gy + at + k * step, gradients[k]);
            }
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
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

/* Merge the splits: a warp for each channel. */
KERNEL statistics(const double *partial, Length splits, Length channels, double eps, REAL *mean, REAL *inv_std)
{
    const Length channel = (Length)blockIdx.x * blockDim.y + threadIdx.y, gap = splits * channels;
    Moments all = {};
    if (channel >= channels)
        return;
    for (Length split = threadIdx.x; split < splits; split += LANES) {
        const double *from = partial + split * channels + channel;
        const Moments next = {from[0], from[gap], from[2 * gap]};
        all = merged(all, next);
    }
    for (int by = LANES / 2; by; by /= 2) {
        const Moments other = {__shfl_down_sync(ALL_LANES, all.n, by), __shfl_down_sync(ALL_LANES, all.mean, by),
                               __shfl_down_sync(ALL_LANES, all.squares, by)};
        all = merged(all, other);
    }
    if (threadIdx.x == 0) {
        mean[channel] = all.mean;
        inv_std[channel] = 1 / sqrt(all.squares / all.n + eps);
    }
}

KERNEL totals(const double *partial, Length splits, Length channels, double count, const REAL *inv_std, REAL *ggamma,
              REAL *gbeta, REAL *offset, REAL *slope)
{
    const Length channel = (Length)blockIdx.x * blockDim.y + threadIdx.y, gap = splits * channels;
    Sums all = {};
    if (channel >= channels)
        return;
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
