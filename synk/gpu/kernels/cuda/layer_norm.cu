/* Layer norm: a block for each row, which passes over it several times while it is in the caches, and sums over
   rows, by column, in splits, for the gradients of gamma and beta. */

KERNEL normalise(const STORED *x, const REAL *gamma, const REAL *beta, Length rows, Length width, double eps,
                 STORED *y, REAL *mean, REAL *inv_std)
{
    __shared__ Sums shared[THREADS / LANES];
    const Length first = (Length)threadIdx.x * V, step = (Length)blockDim.x * V;
    REAL pack[V], slopes[V], offsets[V];
    for (Length row = blockIdx.x; row < rows; row += gridDim.x) {
        const STORED *from = x + row * width;
        Sums sums = {};
        for (Length i = first; i < width; i += step) {
            load(from + i, pack);
            REAL total = 0;
#pragma unroll
            for (int v = 0; v < V; v++)
                total += pack[v];
            sums.first += total;
        }
        const REAL centre = sum_block(sums, shared).first / width;
        sums = {};
        for (Length i = first; i < width; i += step) {
            load(from + i, pack);
            REAL total = 0, squares = 0;
#pragma unroll
            for (int v = 0; v < V; v++) {
                const REAL deviation = pack[v] - centre;
                total += deviation;
                squares += deviation * deviation;
            }
            sums = merged(sums, {(double)total, (double)squares});
        }
        sums = sum_block(sums, shared);
        /* The centre was rounded: what it is off by counts in every square. */
        const double squares = sums.second - sums.first * sums.first / width;
        const REAL scale = 1 / sqrt((squares < 0 ? 0 : squares) / width + eps);
        for (Length i = first; i < width; i += step) {
            load(from + i, pack);
            load_parameters(gamma + i, slopes);
            load_parameters(beta + i, offsets);
#pragma unroll
            for (int v = 0; v < V; v++)
                pack[v] = (pack[v] - centre) * scale * slopes[v] + offsets[v];
            store(pack, y + row * width + i);
        }
        if (threadIdx.x == 0) {
            mean[row] = centre;
            inv_std[row] = scale;
        }
    }
}

KERNEL differentiate(const STORED *gy, const STORED *x, const REAL *gamma, const REAL *mean, const REAL *inv_std,
                     Length rows, Length width, STORED *gx)
{
    __shared__ Sums shared[THREADS / LANES];
    const Length first = (Length)threadIdx.x * V, step = (Length)blockDim.x * V;
    REAL values[V], gradients[V], slopes[V];
    for (Length row = blockIdx.x; row < rows; row += gridDim.x) {
        const Length start = row * width;
        const REAL centre = mean[row], scale = inv_std[row];
        Sums sums = {};
        for (Length i = first; i < width; i += step) {
            load(x + start + i, values);
            load(gy + start + i, gradients);
            load_parameters(gamma + i, slopes);
            REAL total = 0, product = 0;
#pragma unroll
            for (int v = 0; v < V; v++) {
                const REAL g = gradients[v] * slopes[v];
                total += g;
                product += g * ((values[v] - centre) * scale);
            }
            sums = merged(sums, {(double)total, (double)product});
        }
        sums = sum_block(sums, shared);
        const REAL offset = sums.first / width, slope = sums.second / width;
        for (Length i = first; i < width; i += step) {
            load(x + start + i, values);
            load(gy + start + i, gradients);
            load_parameters(gamma + i, slopes);
#pragma unroll
            for (int v = 0; v < V; v++) {
                const REAL h = (values[v] - centre) * scale;
                values[v] = scale * (gradients[v] * slopes[v] - offset - h * slope);
            }
            store(values, gx + start + i);
        }
    }
}

/* Sums of gy and of gy * h by column in each split: two arrays of (splits, width). */
KERNEL products(const STORED *gy, const STORED *x, const REAL *mean, const REAL *inv_std, Length rows,
                Length width, double *partial)
{
    __shared__ Sums shared[V][THREADS];
    const Length column = ((Length)blockIdx.x * blockDim.x + threadIdx.x) * V, gap = gridDim.y * width;
    const Rows mine = rows_of_split(rows);
    Sums found[V] = {};
    if (column < width)
        for (Length row = mine.from + threadIdx.y; row < mine.to; row += ROWS * blockDim.y) {
            REAL values[V], gradients[V], sums[V] = {}, products[V] = {};
#pragma unroll
            for (int k = 0; k < ROWS; k++) {
                const Length here = row + k * blockDim.y;
                if (here >= mine.to)
                    break;
                load(x + here * width + column, values);
                load(gy + here * width + column, gradients);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    sums[v] += gradients[v];
                    products[v] += gradients[v] * ((values[v] - mean[here]) * inv_std[here]);
                }
            }
#pragma unroll
            for (int v = 0; v < V; v++)
                found[v] = merged(found[v], {(double)sums[v], (double)products[v]});
        }
    merge_block(found, shared);
    if (threadIdx.y == 0 && column < width)
#pragma unroll
        for (int v = 0; v < V; v++) {
            double *to = partial + blockIdx.y * width + column + v;
            to[0] = found[v].first;
            to[gap] = found[v].second;
        }
}

/* Merge the splits: a warp for each column. */
KERNEL totals(const double *partial, Length splits, Length width, REAL *ggamma, REAL *gbeta)
{
    const Length column = (Length)blockIdx.x * blockDim.y + threadIdx.y, gap = splits * width;
    Sums all = {};
    if (column >= width)
        return;
#pragma unroll 8
    for (Length split = threadIdx.x; split < splits; split += LANES) {
        const double *from = partial + split * width + column;
        all = merged(all, {from[0], from[gap]});
    }
    all = merge_warp(all);
    if (threadIdx.x == 0) {
        gbeta[column] = all.first;
        ggamma[column] = all.second;
    }
}
