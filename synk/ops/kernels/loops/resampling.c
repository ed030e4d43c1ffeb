/* Changes of the size of images, forward and backward: a row of the result at a time.

   x is seen as (outer, height, width, inner): inner is 1 where channels come first, outer then counts channels,
   too; else inner counts the channels. Row i of the result lies between rows first[i] and second[i] of x, of
   which the second has the weight weight[i]; columns likewise. Without `blend`, the first alone counts. */


/* Write a row of the result, of columns of one row. */
INLINE void NAME(across)(const REAL *restrict row, const long *first, const long *second, const REAL *weight,
                         const int blend, long columns, const long inner, REAL *restrict to)
{
    for (long j = 0; j < columns; j++) {
        const REAL *a = row + first[j] * inner, *b = row + second[j] * inner, w = weight[j], v = 1 - w;
        INDEPENDENT
        for (long c = 0; c < inner; c++)
            to[j * inner + c] = blend ? v * a[c] + w * b[c] : a[c];
    }
}

/* `work` holds a row of x and a row of the result. */
void NAME(resample)(const REAL *x, REAL *y, long outer, long height, long width, long inner, long out_height,
                    long out_width, const long *first, const long *second, const REAL *weight, const long *first_column,
                    const long *second_column, const REAL *column_weight, int blend, REAL *work)
{
    const long length = width * inner, out_length = out_width * inner;
    const int large = outer * out_height * out_length * (long)sizeof(REAL) > LARGE;
    REAL *blended = work, *waiting = work + length;
    for (long image = 0; image < outer; image++, x += height * length)
        for (long i = 0; i < out_height; i++, y += out_length) {
            const REAL *a = x + first[i] * length, *b = x + second[i] * length, w = weight[i], v = 1 - w;
            const int again = i > 0 && !blend && first[i] == first[i - 1];
            REAL *to = large ? waiting : y;
            if (again && !large)
                __builtin_memcpy(y, y - out_length, out_length * sizeof(REAL));
            else if (!again) {
                if (blend) {
                    INDEPENDENT
                    for (long k = 0; k < length; k++)
                        blended[k] = v * a[k] + w * b[k];
                }
                const REAL *row = blend ? blended : a;
#define FORM(BLEND, INNER)                                                                                             \
    NAME(across)(row, first_column, second_column, column_weight, BLEND, out_width, INNER, to)
                if (inner == 1)
                    blend ? FORM(1, 1) : FORM(0, 1);
                else
                    blend ? FORM(1, inner) : FORM(0, inner);
#undef FORM
            }
            if (large)
                stream(y, waiting, out_length * sizeof(REAL));
        }
    end_stream();
}

/* Add a row of the result's gradient to the columns of a row that it came from. */
INLINE void NAME(back_across)(const REAL *restrict from, const long *first, const long *second, const REAL *weight,
                              const int blend, long columns, const long inner, REAL *row)
{
    for (long j = 0; j < columns; j++) {
        REAL *a = row + first[j] * inner, *b = row + second[j] * inner;
        const REAL w = weight[j], v = 1 - w;
        INDEPENDENT
        for (long c = 0; c < inner; c++)
            a[c] += blend ? v * from[j * inner + c] : from[j * inner + c];
        if (blend) {
            INDEPENDENT
            for (long c = 0; c < inner; c++)
                b[c] += w * from[j * inner + c];
        }
    }
}

/* `work` holds a row of gx. */
void NAME(resample_gradient)(REAL *gx, const REAL *gy, long outer, long height, long width, long inner,
                             long out_height, long out_width, const long *first, const long *second,
                             const REAL *weight, const long *first_column, const long *second_column,
                             const REAL *column_weight, int blend, REAL *work)
{
    const long length = width * inner, out_length = out_width * inner;
    for (long image = 0; image < outer; image++, gx += height * length) {
        __builtin_memset(gx, 0, height * length * sizeof(REAL));
        for (long i = 0; i < out_height; i++, gy += out_length) {
            REAL *a = gx + first[i] * length, *b = gx + second[i] * length;
            const REAL w = weight[i], v = 1 - w;
            /* Where the first row alone counts, its columns are added to it directly. */
            REAL *row = blend ? work : a;
            if (blend)
                __builtin_memset(work, 0, length * sizeof(REAL));
#define FORM(BLEND, INNER)                                                                                             \
    NAME(back_across)(gy, first_column, second_column, column_weight, BLEND, out_width, INNER, row)
            if (inner == 1)
                blend ? FORM(1, 1) : FORM(0, 1);
            else
                blend ? FORM(1, inner) : FORM(0, inner);
#undef FORM
            if (!blend)
                continue;
            INDEPENDENT
            for (long k = 0; k < length; k++)
                a[k] += v * work[k];
            INDEPENDENT
            for (long k = 0; k < length; k++)
                b[k] += w * work[k];
        }
    }
}
