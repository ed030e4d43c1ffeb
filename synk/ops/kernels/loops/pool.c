/* Pooling, forward and backward: maximum and mean of windows, and the mean of whole images.

   A line is what one loop goes over: all channels of one result where channels are the last axis, else a row
   of results of one channel, whose windows begin `step` elements apart. */

#ifndef POOL_GEOMETRY
#define POOL_GEOMETRY
typedef struct {
    long images, height, width, channels; /* an image has one channel where channels come first */
    long out_height, out_width;
    long kernel_height, kernel_width, stride_height, stride_width, top, left;
    int channels_last, count_padding, wide; /* wide: places are stored as int, else as one byte */
} Geometry;

enum { MAX, MAX_GRADIENT, MEAN, MEAN_GRADIENT };

/* The part `from:to` of 0:length that meets start, start + step, ... of `count` numbers, by their order. */
typedef struct {
    long from, to;
} Range;

INLINE Range meeting(long start, long step, long count, long length)
{
    const long from = start < 0 ? (-start + step - 1) / step : 0;
    const long to = start < length ? (length - start + step - 1) / step : 0;
    return (Range){from, shorter(to, count)};
}
#endif

/* What a line of results needs beside the image: for each result a REAL, and the place in its window. */
typedef struct {
    REAL *result;
    REAL *share;
    INT *place;
} NAME(Line);

/* Add what `places` places of the windows, `gap` elements apart, contribute to n results, or take from them. */
INLINE void NAME(visit)(const int kind, long n, REAL *restrict x, const long step, const int places, const long gap,
                        INT here, REAL *restrict result, const REAL *restrict share, INT *restrict place)
{
    INDEPENDENT
    for (long i = 0; i < n; i++) {
        REAL value = result[i];
        INT at = kind == MAX || kind == MAX_GRADIENT ? place[i] : 0;
        for (int k = 0; k < places; k++) {
            REAL *pixel = x + i * step + k * gap;
            if (kind == MAX) {
                /* NaN is taken, and is not given up: by two choices, which become vector instructions. */
                const REAL best = value, larger = *pixel <= best ? best : *pixel;
                value = best == best ? larger : best;
                at = (*pixel <= best) | (best != best) ? at : here + k;
            } else if (kind == MAX_GRADIENT)
                *pixel += at == here + k ? value : 0;
            else if (kind == MEAN)
                value += *pixel;
            else
                *pixel += share[i];
        }
        if (kind == MAX || kind == MEAN)
            result[i] = value;
        if (kind == MAX)
            place[i] = at;
    }
}

/* Visit with small numbers as constants: each is a loop of its own. */
INLINE void NAME(visit_line)(const int kind, Range range, REAL *x, long step, long places, long gap, INT here,
                             NAME(Line) line)
{
    const long n = range.to - range.from;
    REAL *result = line.result + range.from, *share = line.share + range.from;
    INT *place = line.place + range.from;
    if (places == 3)
        NAME(visit)(kind, n, x, 1, 3, gap, here, result, share, place);
    else if (places == 2)
        NAME(visit)(kind, n, x, 1, 2, gap, here, result, share, place);
    else if (step == 1)
        NAME(visit)(kind, n, x, 1, 1, 0, here, result, share, place);
    else
        NAME(visit)(kind, n, x, step, 1, 0, here, result, share, place);
}

/* Set n results, of the window that starts at pixel (top, left), to what they are before the first place. */
INLINE void NAME(clear)(const int kind, const Geometry *g, long top, long left, long n, NAME(Line) line)
{
    const long rows = shorter(top + g->kernel_height, g->height) - longer(top, 0);
    const long columns = shorter(left + g->kernel_width, g->width) - longer(left, 0);
    const REAL count = g->count_padding ? g->kernel_height * g->kernel_width : rows * columns;
    const INT first = longer(0, -top) * g->kernel_width + longer(0, -left);
    INDEPENDENT
    for (long i = 0; i < n; i++) {
        if (kind == MAX)
            line.place[i] = first;
        else
            line.share[i] = kind == MEAN ? count : line.result[i] / count;
        if (kind == MAX || kind == MEAN)
            line.result[i] = kind == MAX ? -(REAL)__builtin_inf() : 0;
    }
}

/* Make a line of n results ready, the first of which is number `column` of its row. */
INLINE void NAME(begin)(const int kind, const Geometry *g, long top, long column, long n, const void *index,
                        NAME(Line) line)
{
    const long left = column * g->stride_width - g->left;
    if (kind == MAX_GRADIENT && g->wide)
        for (long i = 0; i < n; i++)
            line.place[i] = ((const int *)index)[i];
    else if (kind == MAX_GRADIENT)
        for (long i = 0; i < n; i++)
            line.place[i] = ((const unsigned char *)index)[i];
    else if (g->channels_last)
        NAME(clear)(kind, g, top, left, n, line);
    else
        for (long i = 0; i < n; i++)
            NAME(clear)(kind, g, top, left + i * g->stride_width, 1,
                        (NAME(Line)){line.result + i, line.share + i, line.place + i});
}

/* Finish a line. */
INLINE void NAME(end)(const int kind, const Geometry *g, long n, void *index, NAME(Line) line)
{
    for (long i = 0; i < n && kind == MEAN; i++)
        line.result[i] /= line.share[i];
    for (long i = 0; i < n && kind == MAX && g->wide; i++)
        ((int *)index)[i] = line.place[i];
    for (long i = 0; i < n && kind == MAX && !g->wide; i++)
        ((unsigned char *)index)[i] = line.place[i];
}

/* Go over all windows of one image. `share` and `place` hold a line each. */
INLINE void NAME(pool_image)(const int kind, const Geometry *g, REAL *image, REAL *result, char *index, REAL *share,
                             INT *place)
{
    const int backward = kind == MAX_GRADIENT || kind == MEAN_GRADIENT, last = g->channels_last;
    const long n = last ? g->channels : g->out_width, lines = last ? g->out_width : 1;
    const long across = g->width * g->channels, step = last ? 1 : g->stride_width;
    long zeroed = 0; /* rows */
    for (long row = 0; row < g->out_height; row++) {
        const long top = row * g->stride_height - g->top;
        const long needed = longer(zeroed, shorter(g->height, top + g->kernel_height));
        if (backward) /* as late as possible, so that they are in the cache when they are added to */
            __builtin_memset(image + zeroed * across, 0, (needed - zeroed) * across * sizeof(REAL));
        zeroed = needed;
        for (long column = 0; column < lines; column++) {
            const NAME(Line) line = {result, share, place};
            NAME(begin)(kind, g, top, column, n, index, line);
            for (long i = longer(0, -top); i < g->kernel_height && top + i < g->height; i++)
                for (long j = 0, places; j < g->kernel_width; j += places) {
                    const long left = column * g->stride_width - g->left + j;
                    const Range range = last ? (Range){0, n} : meeting(left, step, n, g->width);
                    places = last ? shorter(3, shorter(g->kernel_width - j, g->width - left)) : 1;
                    if (last && left >= g->width)
                        break;
                    if (last ? left < 0 : range.from >= range.to) {
                        places = 1;
                        continue;
                    }
                    REAL *x = image + (top + i) * across + left * g->channels + range.from * step;
                    if (last && !backward)
                        prefetch(x, places * n * sizeof(REAL));
                    NAME(visit_line)(kind, range, x, step, places, n, i * g->kernel_width + j, line);
                }
            NAME(end)(kind, g, n, index, line);
            result += n;
            index += n * (g->wide ? sizeof(int) : 1);
        }
    }
    if (backward)
        __builtin_memset(image + zeroed * across, 0, (g->height - zeroed) * across * sizeof(REAL));
}

INLINE void NAME(pool)(const int kind, const Geometry *g, REAL *x, REAL *result, char *index, REAL *share, INT *place)
{
    const long results = g->out_height * g->out_width * g->channels;
    for (long image = 0; image < g->images; image++)
        NAME(pool_image)(kind, g, x + image * g->height * g->width * g->channels, result + image * results,
                         index + image * results * (g->wide ? sizeof(int) : 1), share, place);
}

void NAME(max_pool)(const Geometry *g, REAL *x, REAL *y, char *index, REAL *share, INT *place)
{
    NAME(pool)(MAX, g, x, y, index, share, place);
}

void NAME(max_pool_gradient)(const Geometry *g, REAL *gx, REAL *gy, char *index, REAL *share, INT *place)
{
    NAME(pool)(MAX_GRADIENT, g, gx, gy, index, share, place);
}

void NAME(avg_pool)(const Geometry *g, REAL *x, REAL *y, char *index, REAL *share, INT *place)
{
    NAME(pool)(MEAN, g, x, y, index, share, place);
}

void NAME(avg_pool_gradient)(const Geometry *g, REAL *gx, REAL *gy, char *index, REAL *share, INT *place)
{
    NAME(pool)(MEAN_GRADIENT, g, gx, gy, index, share, place);
}

/* Add rows to `sums`, in REAL by blocks and then in double. */
INLINE void NAME(add_columns)(const REAL *x, long rows, const long width, REAL *restrict block, double *restrict sums)
{
    for (long row = 0; row < rows; row += BLOCK) {
        __builtin_memset(block, 0, width * sizeof(REAL));
        for (long r = row; r < shorter(rows, row + BLOCK); r++)
            for (long c = 0; c < width; c++)
                block[c] += x[r * width + c];
        for (long c = 0; c < width; c++)
            sums[c] += block[c];
    }
}

/* The mean of images of `pixels` pixels, by channel; `block` and `sums` hold a number for each. */
void NAME(global_avg_pool)(const REAL *x, REAL *y, long images, long pixels, long channels, REAL *block, double *sums)
{
    for (long image = 0; image < images; image++, x += pixels * channels, y += channels) {
        __builtin_memset(sums, 0, channels * sizeof(double));
        NAME(add_columns)(x, pixels, channels, block, sums);
        for (long c = 0; c < channels; c++)
            y[c] = sums[c] / pixels;
    }
}

/* The same for images of one channel, which lie one after another. */
void NAME(global_avg_plane)(const REAL *x, REAL *y, long planes, long pixels)
{
    REAL block[LANES];
    for (long plane = 0; plane < planes; plane++, x += pixels) {
        double sums[LANES] = {0}, total = 0;
        const long rows = pixels / LANES;
        NAME(add_columns)(x, rows, LANES, block, sums);
        for (int lane = 0; lane < LANES; lane++)
            total += sums[lane];
        for (long i = rows * LANES; i < pixels; i++)
            total += x[i];
        y[plane] = total / pixels;
    }
}
