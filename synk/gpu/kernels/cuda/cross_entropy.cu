/* Cross-entropy of softmax: a block for each row, which passes over it two or three times. */

/* The larger one; NaN is larger than all. */
INLINE REAL larger(REAL a, REAL b)
{
    return a > b || a != a ? a : b;
}

INLINE REAL largest_of_block(REAL mine, REAL *shared)
{
    const int warps = blockDim.x / LANES;
    for (int by = LANES / 2; by; by /= 2)
        mine = larger(mine, __shfl_xor_sync(ALL_LANES, mine, by));
    if (threadIdx.x % LANES == 0)
        shared[threadIdx.x / LANES] = mine;
    __syncthreads();
    mine = shared[0];
    for (int warp = 1; warp < warps; warp++)
        mine = larger(mine, shared[warp]);
    __syncthreads();
    return mine;
}

KERNEL losses_of(const STORED *logits, const long long *labels, Length rows, Length columns, STORED *losses,
                 STORED *log_sum)
{
    __shared__ REAL highest[THREADS / LANES];
    __shared__ Sums shared[THREADS / LANES];
    const Length first = (Length)threadIdx.x * V, step = (Length)blockDim.x * V;
    REAL pack[V];
    for (Length row = blockIdx.x; row < rows; row += gridDim.x) {
        const STORED *from = logits + row * columns;
        REAL anchor = -infinity();
        for (Length i = first; i < columns; i += step) {
            load(from + i, pack);
#pragma unroll
            for (int v = 0; v < V; v++)
                anchor = larger(anchor, pack[v]);
        }
        anchor = largest_of_block(anchor, highest);
        if (anchor == infinity() || anchor == -infinity())
            anchor = 0; /* infinity less itself is NaN */
        Sums sums = {};
        for (Length i = first; i < columns; i += step) {
            load(from + i, pack);
            REAL total = 0;
#pragma unroll
            for (int v = 0; v < V; v++)
                total += EXP(pack[v] - anchor);
            sums.first += total;
        }
        sums = sum_block(sums, shared);
        if (threadIdx.x == 0) {
            const double log_total = log(sums.first);
            const long long label = labels[row];
            const bool known = label >= 0 && label < columns;
            log_sum[row] = NARROW((REAL)(anchor + log_total));
            losses[row] = NARROW(known ? (REAL)(log_total - (WIDEN(from[label]) - anchor)) : not_a_number());
        }
    }
}

KERNEL differentiate(const STORED *g, const STORED *logits, const long long *labels, const STORED *log_sum,
                     Length rows, Length columns, STORED *result)
{
    __shared__ Sums shared[THREADS / LANES];
    const Length first = (Length)threadIdx.x * V, step = (Length)blockDim.x * V;
    REAL pack[V];
    for (Length row = blockIdx.x; row < rows; row += gridDim.x) {
        const Length start = row * columns;
        const REAL anchor = WIDEN(log_sum[row]), factor = WIDEN(g[row]);
        const long long given = labels[row], label = given >= 0 && given < columns ? given : 0;
        Sums sums = {};
        for (Length i = first; i < columns; i += step) {
            load(logits + start + i, pack);
            REAL total = 0;
#pragma unroll
            for (int v = 0; v < V; v++)
                total += EXP(pack[v] - anchor);
            sums.first += total;
        }
        /* A log_sum of 1e4 is rounded to 5e-4 in float32, and so would every power be. */
        const REAL total = sum_block(sums, shared).first;
        for (Length i = first; i < columns; i += step) {
            load(logits + start + i, pack);
#pragma unroll
            for (int v = 0; v < V; v++)
                pack[v] = (EXP(pack[v] - anchor) / total - (i + v == label ? 1 : 0)) * factor;
            store(pack, result + start + i);
        }
    }
}
