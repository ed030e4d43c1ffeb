/* The end of a residual block: y = max(0, batch norm of x + shortcut), and backward's first pass. Arrays are seen as
   (rows, channels): lanes along channels, threadIdx.y along rows, blockIdx.y is the part of all rows.

   Statistics, totals and the gradient for x are the business of batch_norm.cu. */

typedef Pack<STORED> Packed;

/* A kernel of which a multiprocessor is to hold so many blocks: what limits them is registers, and memory is kept busy
   by those that wait for it. */
#define KERNEL_HELD(BLOCKS) extern "C" __global__ void __launch_bounds__(256, BLOCKS)

enum {
    AHEAD = 2, /* rows of four arrays that a thread asks memory for at once */
};

INLINE Packed read(const STORED *from)
{
    return *(const Packed *)from;
}

KERNEL_HELD(3) normalise_and_add(const STORED *x, const STORED *shortcut, const REAL *gamma, const REAL *beta,
                                 const REAL *mean, const REAL *inv_std, Length rows, Length channels, STORED *y)
{
    const Length channel = ((Length)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (channel >= channels)
        return;
    REAL centre[V], scale[V], shift[V];
    load_affine(gamma, beta, mean, inv_std, channel, centre, scale, shift);
    const Rows part = rows_of_split(rows);
    const Length step = blockDim.y * channels, end = part.to * channels;
    for (Length at = (part.from + threadIdx.y) * channels + channel; at < end; at += ROWS * step) {
        Packed values[ROWS], added[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            if (at + k * step < end) {
                values[k] = read(x + at + k * step);
                added[k] = read(shortcut + at + k * step);
            }
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            if (at + k * step < end) {
                REAL sums[V];
#pragma unroll
                for (int v = 0; v < V; v++) {
                    const REAL normal = (WIDEN(values[k].item[v]) - centre[v]) * scale[v] + shift[v];
                    const REAL sum = normal + WIDEN(added[k].item[v]);
                    sums[v] = sum < 0 ? 0 : sum; /* NaN stays */
                }
                store(sums, y + at + k * step);
            }
    }
}

/* g = one + two where y is positive, else 0, and its sums, as `products` of batch_norm.cu has them of gy. They are
   formed of g as it is stored: what follows reads that. `two` may be missing. */
KERNEL_HELD(2) masked_products(const STORED *one, const STORED *two, const STORED *y, const STORED *x,
                               const REAL *mean, Length rows, Length channels, STORED *g, double *partial)
{
    __shared__ Sums shared[V][THREADS];
    const Length channel = ((Length)blockIdx.x * blockDim.x + threadIdx.x) * V, gap = gridDim.y * channels;
    Sums found[V] = {};
    if (channel < channels) {
        REAL centre[V];
        load_parameters(mean + channel, centre);
        const Rows part = rows_of_split(rows);
        const Length step = blockDim.y * channels, end = part.to * channels;
        for (Length at = (part.from + threadIdx.y) * channels + channel; at < end; at += AHEAD * step) {
            Packed first[AHEAD], second[AHEAD], results[AHEAD], values[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (at + k * step < end) {
                    first[k] = read(one + at + k * step);
                    if (two)
                        second[k] = read(two + at + k * step);
                    results[k] = read(y + at + k * step);
                    values[k] = read(x + at + k * step);
                }
#pragma unroll
            for (int v = 0; v < V; v++) {
                REAL sum = 0, product = 0;
#pragma unroll
                for (int k = 0; k < AHEAD; k++)
                    if (at + k * step < end) {
                        REAL gradient = WIDEN(first[k].item[v]);
                        if (two)
                            gradient += WIDEN(second[k].item[v]);
                        first[k].item[v] = NARROW(WIDEN(results[k].item[v]) > 0 ? gradient : (REAL)0);
                        gradient = WIDEN(first[k].item[v]);
                        sum += gradient;
                        product += gradient * (WIDEN(values[k].item[v]) - centre[v]);
                    }
                found[v] = merged(found[v], {(double)sum, (double)product});
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (at + k * step < end)
                    *(Packed *)(g + at + k * step) = first[k];
        }
    }
    merge_block(found, shared);
    if (threadIdx.y == 0 && channel < channels)
#pragma unroll
        for (int v = 0; v < V; v++) {
            double *to = partial + blockIdx.y * channels + channel + v;
            to[0] = found[v].first;
            to[gap] = found[v].second;
        }
}
