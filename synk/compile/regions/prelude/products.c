/* Products of matrices, by BLAS or oneDNN. */

/* Tell whether BLAS can read a matrix as it lies: by rows, its transpose, 'N' or by columns, 'T'; 0 if not. */
SHARED int lies(const View *x, long size, int *lead)
{
    const long rows = x->shape[0], columns = x->shape[1];
    for (int by_columns = 0; by_columns < 2; by_columns++) {
        const long outer = by_columns ? columns : rows, inner = by_columns ? rows : columns;
        const long far = outer > 1 ? x->strides[by_columns] : inner * size;
        if ((inner > 1 && x->strides[1 - by_columns] != size) || far < inner * size || far % size
            || far / size >= COUNTABLE || outer >= COUNTABLE)
            continue;
        *lead = far / size;
        return by_columns ? 'T' : 'N';
    }
    return 0;
}

/* What oneDNN computes in less time than BLAS; set before the library is used, see `synk.compile.native.onednn_products`. */
struct {
    int (*multiply)(char, char, long, long, long, float, const void *, long, const void *, long, float, void *, long);
    int (*get_threads)(void);
    void (*set_threads)(int);
    long rows, columns, least, most;
} onednn;

/* Set z to x @ y by oneDNN, if it is faster; return whether it did. */
SHARED int by_onednn(char by_x, char by_y, const View *x, int of_x, const View *y, int of_y, const View *z, int of_z)
{
    const long rows = x->shape[0], inner = x->shape[1], columns = y->shape[1], work = rows * inner * columns;
    if (!onednn.multiply || rows < onednn.rows || columns < onednn.columns || work < onednn.least
        || work > onednn.most)
        return 0;
    const int before = onednn.get_threads();
    onednn.set_threads(1);
    const int status = onednn.multiply(by_x, by_y, rows, columns, inner, 1, x->data, of_x, y->data, of_y, 0, z->data,
                                       of_z);
    onednn.set_threads(before);
    return !status;
}

#define AT(T, x, i, j) (*(T *)((x)->data + (i) * (x)->strides[0] + (j) * (x)->strides[1]))

/* Set z to x @ y: by one of BLAS's routines, if that can read and write them as they lie. */
#define MULTIPLY(T, k)                                                                                          \
    SHARED void multiply_##T(void *const *routines, const View *x, const View *y, const View *z)                \
    {                                                                                                           \
        typedef void Gemv(char *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *);                  \
        typedef void Gemm(char *, char *, int *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *);   \
        const long all = z->shape[0] * z->shape[1];                                                             \
        int rows = x->shape[0], inner = x->shape[1], columns = y->shape[1], of_x, of_y, of_z, one = 1;          \
        T alpha = 1, beta = 0;                                                                                  \
        char by_x = lies(x, sizeof(T), &of_x), by_y = lies(y, sizeof(T), &of_y);                                \
        const int others = let_others(all / 16 * x->shape[1]);                                                  \
        /* BLAS takes columns for rows: a transpose is how a matrix lies by rows. */                            \
        if (!by_x || !by_y || lies(z, sizeof(T), &of_z) != 'N' || !inner || !all)                               \
            for (long i = 0; i < all; i++) {                                                                    \
                const long row = i / columns, column = i % columns;                                             \
                T sum = 0;                                                                                      \
                for (long j = 0; j < x->shape[1]; j++)                                                          \
                    sum += AT(T, x, row, j) * AT(T, y, j, column);                                              \
                AT(T, z, row, column) = sum;                                                                    \
            }                                                                                                   \
        else if (columns == 1)                                                                                  \
            ((Gemv *)routines[k])(by_x == 'N' ? "T" : "N", by_x == 'N' ? &inner : &rows,                        \
                                  by_x == 'N' ? &rows : &inner, &alpha, (T *)x->data, &of_x, (T *)y->data,      \
                                  &of_y, &beta, (T *)z->data, &of_z);                                           \
        else if (rows == 1)                                                                                     \
            ((Gemv *)routines[k])(by_y == 'N' ? "N" : "T", by_y == 'N' ? &columns : &inner,                     \
                                  by_y == 'N' ? &inner : &columns, &alpha, (T *)y->data, &of_y, (T *)x->data,   \
                                  by_x == 'N' ? &one : &of_x, &beta, (T *)z->data, &one);                       \
        else if (sizeof(T) != sizeof(float) || !by_onednn(by_x, by_y, x, of_x, y, of_y, z, of_z))               \
            ((Gemm *)routines[k + 2])(&by_y, &by_x, &columns, &rows, &inner, &alpha, (T *)y->data, &of_y,       \
                                      (T *)x->data, &of_x, &beta, (T *)z->data, &of_z);                         \
        if (others)                                                                                             \
            come_back();                                                                                        \
    }
MULTIPLY(double, 0)
MULTIPLY(float, 1)
