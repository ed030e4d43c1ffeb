/* Pooling, forward and backward. A thread has V channels of one result, or of one pixel; an image has one channel
   where channels come first, so that one text serves both layouts. Backward, a pixel looks at all windows that it
   is in and adds what they send it: no two threads write to one place, and the order is that of the windows.

   PLACE is the type of places in a window, INDEX one that counts all elements. */

struct Geometry {
    INDEX images, height, width, channels, out_height, out_width;
    int kernel_height, kernel_width, stride_height, stride_width, top, left;
};

#define GEOMETRY                                                                                                       \
    INDEX images, INDEX height, INDEX width, INDEX channels, INDEX out_height, INDEX out_width, int kernel_height,     \
        int kernel_width, int stride_height, int stride_width, int top, int left
#define GIVEN                                                                                                          \
    {images, height, width, channels, out_height, out_width, kernel_height, kernel_width, stride_height, stride_width, \
     top, left}

INLINE INDEX least(INDEX a, INDEX b)
{
    return a < b ? a : b;
}

INLINE INDEX most(INDEX a, INDEX b)
{
    return a > b ? a : b;
}

/* Where a pack lies among images of (height, width) packs of channels. */
struct Place {
    INDEX image, row, column, channel;
};

INLINE Place place_of(INDEX number, INDEX height, INDEX width, INDEX channels)
{
    const INDEX packs = channels / V, pixel = number / packs, line = pixel / width;
    return {line / height, line % height, pixel % width, number % packs * V};
}

/* The window of a result, from and to which pixel: only what is in the image. */
struct Window {
    INDEX from_row, to_row, from_column, to_column;
};

INLINE Window window_of(const Geometry &g, INDEX row, INDEX column)
{
    const INDEX down = row * g.stride_height - g.top, right = column * g.stride_width - g.left;
    return {most(down, 0), least(down + g.kernel_height, g.height), most(right, 0),
            least(right + g.kernel_width, g.width)};
}

INLINE REAL count_of(const Geometry &g, const Window &w, int count_padding)
{
    return count_padding ? (REAL)((INDEX)g.kernel_height * g.kernel_width)
                         : (REAL)((w.to_row - w.from_row) * (w.to_column - w.from_column));
}

/* The results whose windows have a pixel, along one axis: first and one after the last. */
struct Range {
    INDEX from, to;
};

INLINE Range windows_with(INDEX pixel, int before, int size, int stride, INDEX outputs)
{
    const INDEX last = pixel + before, first = last - size + 1;
    return {first > 0 ? (first + stride - 1) / stride : 0, least(outputs, last / stride + 1)};
}

/* Every pack of `total`: for a thread, each grid's width. */
#define EACH(number, total)                                                                                            \
    for (INDEX number = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; number < (total);                                \
         number += (INDEX)blockDim.x * gridDim.x)

KERNEL max_pool(const STORED *x, GEOMETRY, STORED *y, PLACE *index)
{
    const Geometry g = GIVEN;
    EACH (number, g.images * g.out_height * g.out_width * (g.channels / V)) {
        const Place p = place_of(number, g.out_height, g.out_width, g.channels);
        const Window w = window_of(g, p.row, p.column);
        const INDEX down = p.row * g.stride_height - g.top, right = p.column * g.stride_width - g.left;
        REAL best[V], pack[V];
        Pack<PLACE> place;
#pragma unroll
        for (int v = 0; v < V; v++) {
            best[v] = -infinity();
            place.item[v] = (w.from_row - down) * g.kernel_width + w.from_column - right;
        }
        for (INDEX row = w.from_row; row < w.to_row; row++)
            for (INDEX column = w.from_column; column < w.to_column; column++) {
                load(x + ((p.image * g.height + row) * g.width + column) * g.channels + p.channel, pack);
#pragma unroll
                for (int v = 0; v < V; v++)
                    /* NaN is taken, and is not given up. */
                    if (!(pack[v] <= best[v]) && best[v] == best[v]) {
                        best[v] = pack[v];
                        place.item[v] = (row - down) * g.kernel_width + column - right;
                    }
            }
        store(best, y + number * V);
        *(Pack<PLACE> *)(index + number * V) = place;
    }
}

KERNEL max_pool_gradient(const STORED *gy, const PLACE *index, GEOMETRY, STORED *gx)
{
    const Geometry g = GIVEN;
    EACH (number, g.images * g.height * g.width * (g.channels / V)) {
        const Place p = place_of(number, g.height, g.width, g.channels);
        const Range rows = windows_with(p.row, g.top, g.kernel_height, g.stride_height, g.out_height);
        const Range columns = windows_with(p.column, g.left, g.kernel_width, g.stride_width, g.out_width);
        REAL sums[V] = {}, pack[V];
        for (INDEX row = rows.from; row < rows.to; row++)
            for (INDEX column = columns.from; column < columns.to; column++) {
                const INDEX at = ((p.image * g.out_height + row) * g.out_width + column) * g.channels + p.channel;
                const int here = (p.row + g.top - row * g.stride_height) * g.kernel_width + p.column + g.left -
                                 column * g.stride_width;
                const Pack<PLACE> places = *(const Pack<PLACE> *)(index + at);
                load(gy + at, pack);
#pragma unroll
                for (int v = 0; v < V; v++)
                    sums[v] += places.item[v] == here ? pack[v] : 0;
            }
        store(sums, gx + number * V);
    }
}

KERNEL avg_pool(const STORED *x, GEOMETRY, int count_padding, STORED *y)
{
    const Geometry g = GIVEN;
    EACH (number, g.images * g.out_height * g.out_width * (g.channels / V)) {
        const Place p = place_of(number, g.out_height, g.out_width, g.channels);
        const Window w = window_of(g, p.row, p.column);
        const REAL count = count_of(g, w, count_padding);
        REAL sums[V] = {}, pack[V];
        for (INDEX row = w.from_row; row < w.to_row; row++)
            for (INDEX column = w.from_column; column < w.to_column; column++) {
                load(x + ((p.image * g.height + row) * g.width + column) * g.channels + p.channel, pack);
#pragma unroll
                for (int v = 0; v < V; v++)
                    sums[v] += pack[v];
            }
#pragma unroll
        for (int v = 0; v < V; v++)
            sums[v] /= count;
        store(sums, y + number * V);
    }
}

KERNEL avg_pool_gradient(const STORED *gy, GEOMETRY, int count_padding, STORED *gx)
{
    const Geometry g = GIVEN;
    EACH (number, g.images * g.height * g.width * (g.channels / V)) {
        const Place p = place_of(number, g.height, g.width, g.channels);
        const Range rows = windows_with(p.row, g.top, g.kernel_height, g.stride_height, g.out_height);
        const Range columns = windows_with(p.column, g.left, g.kernel_width, g.stride_width, g.out_width);
        REAL sums[V] = {}, pack[V];
        for (INDEX row = rows.from; row < rows.to; row++)
            for (INDEX column = columns.from; column < columns.to; column++) {
                const REAL count = count_of(g, window_of(g, row, column), count_padding);
                load(gy + ((p.image * g.out_height + row) * g.out_width + column) * g.channels + p.channel, pack);
#pragma unroll
                for (int v = 0; v < V; v++)
                    sums[v] += pack[v] / count;
            }
        store(sums, gx + number * V);
    }
}

/* The mean of images of `pixels` pixels, channels last: lanes along channels, threadIdx.y along pixels,
   blockIdx.y the image. */
KERNEL column_means(const STORED *x, Length pixels, Length channels, STORED *y)
{
    __shared__ Sums shared[V][THREADS];
    const Length channel = ((Length)blockIdx.x * blockDim.x + threadIdx.x) * V;
    Sums sums[V] = {};
    REAL pack[V];
    if (channel < channels)
        for (Length pixel = threadIdx.y; pixel < pixels; pixel += blockDim.y) {
            load(x + (blockIdx.y * pixels + pixel) * channels + channel, pack);
#pragma unroll
            for (int v = 0; v < V; v++)
                sums[v].first += pack[v];
        }
    merge_block(sums, shared);
#pragma unroll
    for (int v = 0; v < V; v++)
        pack[v] = sums[v].first / pixels;
    if (threadIdx.y == 0 && channel < channels)
        store(pack, y + blockIdx.y * channels + channel);
}

/* The same for images of one channel, which lie one after another: a warp for each. */
KERNEL plane_means(const STORED *x, Length planes, Length pixels, STORED *y)
{
    const Length plane = (Length)blockIdx.x * blockDim.y + threadIdx.y;
    Sums sums = {};
    REAL pack[V];
    if (plane >= planes)
        return;
    for (Length i = (Length)threadIdx.x * V; i < pixels; i += LANES * V) {
        load(x + plane * pixels + i, pack);
        REAL total = 0;
#pragma unroll
        for (int v = 0; v < V; v++)
            total += pack[v];
        sums.first += total;
    }
    sums = merge_warp(sums);
    if (threadIdx.x == 0)
        y[plane] = NARROW((REAL)(sums.first / pixels));
}
