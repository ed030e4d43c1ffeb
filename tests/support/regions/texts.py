"""Graphs of each Op that regions have C texts of, by what they compute, and values for their variables."""

import numpy as np
import pytensor.tensor as pt
from pytensor.scalar import ScalarLoop, float64
from pytensor.scan.basic import scan
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.decomposition.lu import pivot_to_permutation
from pytensor.tensor.signal import convolve1d

from support.slow import slow

x, z = pt.matrix("x", dtype="float64"), pt.matrix("z", dtype="float32")
t = pt.tensor3("t", dtype="float64")
w, y = pt.vector("w", dtype="float64"), pt.vector("y", dtype="float64")
i, k = pt.lvector("i"), pt.ivector("k")
mask = pt.bvector("mask")
s, n = pt.scalar("s", dtype="float64"), pt.lscalar("n")
small = pt.matrix("small", shape=(3, 4), dtype="float64")

definite = small @ small.T + 2 * pt.eye(3)
many = 4 * pt.eye(2) + pt.tanh(t[:, :, :2] + t[:, :, :2].mT)  # definite matrices of two rows
long = pt.outer(y, y) + y.shape[0] * pt.eye(y.shape[0])  # as many rows as there are, for a loop or LAPACK
factor = pt.linalg.cholesky(long)
general = pt.outer(y, pt.sin(y)) + 3 * pt.eye(y.shape[0])
cycled = pt.concatenate([general[1:], general[:1]])  # factors exchange rows, not in pairs
_, exchanges = pt.linalg.lu_factor(cycled)


def inc_by_itself(total):
    return pt.inc_subtensor(total[pt.arange(3) % 2], total) * 2


a, b, c = float64("a"), float64("b"), float64("c")
until = Elemwise(ScalarLoop(init=[a, b], update=[a + b, b * c], constant=[c], until=a + b > 3))
repeated = Elemwise(ScalarLoop(init=[a, b], update=[a + b, b * c], constant=[c]))
ROWS, COLUMNS = 7, 3


def values(rows=ROWS):
    rng = np.random.default_rng(rows)
    return {
        x: rng.normal(size=(rows, COLUMNS)),
        z: rng.normal(size=(rows, COLUMNS)).astype("float32"),
        t: rng.normal(size=(rows, 2, COLUMNS)),
        w: rng.normal(size=COLUMNS),
        y: rng.normal(size=rows),
        i: rng.integers(-rows, max(rows, 1), size=rows),
        k: rng.integers(-5, 6, size=rows).astype("int32"),
        mask: rng.integers(2, size=rows).astype("int8"),
        s: np.float64(rng.normal()),
        n: np.int64(2),
        small: rng.normal(size=(3, 4)),
    }


def steps(step, **keywords):
    return scan(step, return_updates=False, **keywords)


TEXTS = {
    "arithmetic": x * 2 + w - y[:, None] / (1 + x**2),
    "functions": pt.exp(x) + pt.log1p(abs(x)) * pt.tanh(w) + pt.erf(x) - pt.sigmoid(y)[:, None],
    "mixed dtypes": z * k[:, None] + x.astype("float32"),
    "integers": k // 3 + k % 4 - (k > 0) * i,
    "choices": pt.switch(x > 0, x, w) + pt.clip(x, -0.5, 0.5),
    "numbers": pt.exp(s) * n + s / n,
    "elements that take steps until they are done": [
        *until(i, x[:, 0], pt.exp(y), s),
        until(k[:, None], x, abs(w), s)[0].sum(axis=1),
        *until(n, s, s * 2, s),
        *repeated(4, x, w, s),
        *repeated(0, s, s * 2, w),
        steps(lambda row, h: h + until(n, h, row[0], s)[1], sequences=x, outputs_info=s),
    ],
    "elements that take steps in gradients": [
        pt.grad(pt.gammaincc(abs(y) + 1, abs(x[:, 0])).sum(), y),
        pt.grad(pt.hyp2f1(s, 1.5, 2.5, pt.sigmoid(s)), s),
        pt.grad(pt.betainc(abs(y) + 0.5, 1.5, pt.sigmoid(y)).sum(), y),  # with powers of an int16
    ],
    "all of a sum": x.sum(),
    "sums along rows": (x * w).sum(axis=1) + x.mean(axis=1),
    "sums along columns": (x * w).sum(axis=0),
    "a sum along the middle": (t**2).sum(axis=1),
    "sums along each axis": [
        total
        for cube in (t, t.transpose(2, 0, 1), t[::2].transpose(1, 2, 0), (t * 2).astype("float32"))
        for total in (cube.sum(axis=0), cube.max(axis=1), cube.sum(axis=2), cube.sum(axis=(0, 2)))
    ],
    "sums of float32 in float64": z.sum(axis=0) + z.sum(),
    "sums of integers": k.sum() + i.prod(),
    "extremes": [x.max(), x.min(axis=1), k.max(), pt.max(z, axis=0)],
    "truth": [(x > 0).all(axis=0), (x > 5).any()],
    "a value that is summed and kept": [pt.exp(x), pt.exp(x).sum(axis=0), pt.exp(x).sum()],
    "transposes": x.T + x.T.copy() * 2,
    "shapes": x.shape[0] * x.shape[1] + t.shape[2],
    "parts of shapes": [x.shape[n - 1] * 2, t.shape[n - 2 :].sum(), t.shape[::-1] * 2, t.shape[1:][0] + n],
    "reshapes": [x.reshape((-1,)) * 2, x.T.reshape((-1,)) + 1, t.reshape((t.shape[0], -1)).sum(axis=0)],
    "slices": [x[1:] * 2, x[::-2, 1:] + 1, x[-1] * w, x[n, 0] + s, y[-2:].sum(), x[n:, ::-1].sum(axis=0)],
    "rows at positions": [x[i] * 2, y[i] + 1, w[i % 3].sum(), t[i].sum(axis=0), t[i, abs(k) % 2] * 2],
    "gradients of rows at positions": [pt.grad((x[i] ** 2).sum(), x), pt.grad((w[i % 3] ** 3).sum(), w)],
    "joins": [
        pt.concatenate([y, w, y * 2]) + 1,
        pt.join(1, x, x[:, ::-1] * 2),
        pt.stack([s, s * 2, y.sum()]),
    ],
    "changed parts": [
        pt.set_subtensor((x * 2)[1:, 0], s),
        pt.inc_subtensor((x + 1)[:, ::-1], w),
        pt.inc_subtensor((x + 1)[i], x),
        pt.set_subtensor((y + 1)[n], s),
        pt.inc_subtensor(pt.zeros(5)[i % 5], y),
    ],
    "new arrays": [pt.ones((x.shape[0], 2)) * s, pt.alloc(w, x.shape[0], 3) + 1, pt.arange(n, 9, 2) * 2],
    "running sums": [
        pt.cumsum(y * 2),
        pt.cumsum(s * 2) + 1,
        pt.cumsum(x * 2, axis=0) + pt.cumprod(x, axis=-1),
        pt.cumsum(t.transpose(1, 0, 2) * 2, axis=1)[::-1],
        pt.cumprod(i * 2) + pt.cumsum(i),
        pt.grad((pt.cumsum(y * 2) ** 2).sum(), y),
    ],
    "memory that is set": [pt.set_subtensor(pt.set_subtensor(pt.empty(3)[:1], s)[1:], w[:2]) * 2],
    "products with vectors": [x @ w, y @ x, x.T @ y, w @ w, (x * 2) @ (w + 1), 0.5 * y + 2 * (x @ w)],
    "outer products": [pt.outer(y, w), x + 2 * pt.outer(y, w)],
    "small products": [small @ small.T, small.T @ (small + 1)],
    "convolutions": [
        convolve1d(y, w, mode="full"),
        convolve1d(w, y[::-1], mode="full"),
        convolve1d(x[:, 0], w, mode="valid"),
        convolve1d(t[:, :, 0].T, x[None, :, 1], mode="full"),
        convolve1d(small, small[:, :2], mode="valid") * 2,
        convolve1d(w, small[:, :2], mode="full") * 2,
    ],
    "matrices along a diagonal": [pt.linalg.block_diag(x, small), pt.linalg.block_diag(z, z[:, :1], z.T)],
    "general systems, inverses and determinants": [
        *(pt.linalg.solve(one, given) for one in (general, general.T) for given in (y, x, x[:, ::2])),
        pt.linalg.inv(general) * 2,
        pt.linalg.inv(small[:, :3].astype("float32") + 3 * pt.eye(3, dtype="float32")),
        *(pt.linalg.det(one) for one in (general, -definite, small[:, :3], pt.zeros((2, 2)) * s)),
        *pt.linalg.slogdet(general[::-1]),
        *pt.linalg.slogdet(definite * 0),
        pt.linalg.solve(cycled, y),
    ],
    "orders of rows": [
        pivot_to_permutation(exchanges),
        pivot_to_permutation(exchanges, inverse=True),
        pt.argsort(pivot_to_permutation(exchanges, inverse=True)),
    ],
    "general systems in gradients and loops": [
        *(pt.grad((one**2).sum(), y) for one in (pt.linalg.solve(cycled, y), pt.linalg.inv(cycled))),
        steps(lambda row, h: pt.linalg.solve(definite, h) + row, sequences=x, outputs_info=w),
        pt.grad(steps(lambda m: pt.linalg.slogdet(m @ m.T + s**2 * pt.eye(2))[1], sequences=t).sum(), s),
    ],
    "elements at positions": [
        x[pt.arange(x.shape[0]), abs(k) % 3] * 2,
        pt.grad((x[pt.arange(x.shape[0]), abs(k) % 3] ** 2).sum(), x),
        pt.inc_subtensor((x * 2)[i, abs(k) % 3], y),
        pt.inc_subtensor((t * 2)[i, abs(k) % 2], t[:, 0]),
        pt.inc_subtensor((x * 2)[i], w),
        pt.inc_subtensor((x * 2)[i], s),
        y[i] * z[:, 0][i // 2] + x[::-1, 1][abs(i) // 2] + w[k % 3],
    ],
    "positions along later axes": [
        x[:, k % 3] * 2,
        t[:, abs(i) % 2] * 2,
        t[:, :, k % 3] * 2,
        t[:, abs(k) % 2, -(i % 3)] * 2,
        z[:, ::-1][:, -abs(k) % 3] * 2,
        t.transpose(2, 0, 1)[::-1, i, abs(k) % 2] * 2,
        t[None][..., k % 3] * 2,
    ],
    "gradients of positions along later axes": [
        pt.grad((x[:, k % 3] ** 2).sum(), x),
        pt.grad((t[:, abs(i) % 2] ** 2).sum(), t),
        pt.grad((t[:, :, k % 3] ** 2).sum(), t),
        pt.grad((t[:, abs(k) % 2, -(i % 3)] ** 2).sum(), t),
        pt.grad((z[:, -abs(k) % 3] ** 2).sum(), z),
        pt.grad((t[n:, :, k % 3][..., ::2] ** 2).sum(), t),
        pt.grad((t[abs(i) % 4, ::-1, 1:] ** 2).sum(), t),
    ],
    "changes at positions along later axes": [
        pt.inc_subtensor((x * 2)[:, k % 3], y),
        pt.inc_subtensor((x * 2)[:, k % 3], y[:, None]),
        pt.inc_subtensor((z * 2)[:, k % 3], s.astype("float32")),
        pt.inc_subtensor((t * 2)[:, abs(i) % 2], w),
        pt.inc_subtensor((t * 2)[:, abs(k) % 2, i % 3], y),
        pt.set_subtensor((t * 2)[:, abs(k) % 2, i % 3], y[:, None]),
        pt.set_subtensor((t * 2)[:, :, -(i % 3)], y),
        pt.set_subtensor((t * 2)[:, abs(i) % 2], s),
        pt.inc_subtensor((t * 2)[1:-1, ::-1, k % 3], y),
    ],
    "numbers at positions": [
        pt.inc_subtensor((x * 2)[i], 1.5),
        pt.inc_subtensor((x * 2)[i], y[:, None]),
        pt.set_subtensor((x * 2)[::2].T[k % 3], y[:, None]),
        pt.inc_subtensor((t * 2)[i, abs(k) % 2], s),
        pt.inc_subtensor((t * 2)[i], y[:, None, None]),
        pt.set_subtensor((k * 2)[i], 3),
        pt.inc_subtensor((x * 2)[1:], 1),
    ],
    "softmax": [
        pt.special.softmax(x, axis=1),
        pt.special.log_softmax(x * s, axis=0),
        pt.logsumexp(x, axis=1),
    ],
    "factors": [pt.linalg.cholesky(definite), pt.linalg.cholesky(definite, lower=False)],
    "triangular solutions": [
        pt.linalg.solve_triangular(pt.linalg.cholesky(definite), small[:, 0], lower=True),
        pt.linalg.solve_triangular(pt.linalg.cholesky(definite), small, lower=True),
        pt.linalg.solve_triangular(pt.linalg.cholesky(definite).T, small, lower=False),
        pt.linalg.solve_triangular(definite, small, lower=True, unit_diagonal=True),
    ],
    "factors of any length": [
        factor,
        pt.linalg.cholesky(long.astype("float32"), lower=False),
        pt.linalg.cholesky(long[::-1, ::-1]),
    ],
    "solutions of any length": [
        pt.linalg.solve_triangular(factor, y, lower=True),
        pt.linalg.solve_triangular(factor.T, y[::-1], lower=False),
        pt.linalg.solve_triangular(factor.T * 1, y, lower=False),
        pt.linalg.solve_triangular(factor, y, lower=True, unit_diagonal=True),
        pt.linalg.solve_triangular(factor[::-1, ::-1], x[:, :1], lower=False),
        pt.linalg.solve_triangular(factor.astype("float32"), z[:, 0], lower=True),
        pt.linalg.solve_triangular(factor, x, lower=True),
        pt.linalg.solve_triangular(pt.linalg.cholesky(definite), x.T, lower=True),
        pt.linalg.solve_triangular(factor.T, x[::-1], lower=False),
        pt.linalg.solve_triangular(factor.T * 1, x, lower=False, unit_diagonal=True),
        pt.linalg.solve_triangular(factor[::-1, ::-1], x, lower=False),
        pt.linalg.solve_triangular(factor.astype("float32"), z, lower=True),
    ],
    "blocks of factors": [
        pt.linalg.cholesky(many),
        pt.linalg.cholesky(many[None, ::2].astype("float32"), lower=False),
        pt.log(pt.diagonal(pt.linalg.cholesky(many), axis1=-2, axis2=-1)).sum(axis=-1),
    ],
    "blocks of products": [
        pt.matmul(t, t.mT * 2),
        pt.matmul(t[::-1, :, ::2], t[:, :, ::2].mT).sum(axis=0),
        pt.matmul(t[:, None], t[None, :2].mT),
        pt.matmul(t, small),
    ],
    "blocks of solutions": [
        pt.linalg.solve_triangular(many, t, lower=True),
        pt.linalg.solve_triangular(many[0], t, lower=True),
        pt.linalg.solve_triangular(many[:3, None], t[None, ::-1], lower=False),
        pt.linalg.solve_triangular(many, t[:, :, 0], lower=True, b_ndim=1),
        pt.linalg.solve_triangular(many, t[0, :, 0], lower=True, b_ndim=1),
        pt.linalg.solve_triangular(many, small[1:2, :2], lower=True, b_ndim=1),
    ],
    "gradients of factors": pt.grad(pt.log(pt.diagonal(pt.linalg.cholesky(definite))).sum(), small),
    "diagonals": [pt.diag(small[:, 0] + 1), pt.diagonal(small @ small.T) * 2],
    "a loop": steps(lambda a, before: pt.tanh(a * before + s), sequences=y, outputs_info=s),
    "the end of a loop": steps(lambda a, before: a + before * 0.9, sequences=y, outputs_info=s)[-1] * 2,
    "a loop of vectors": steps(lambda row, before: pt.tanh(row + before * w), sequences=x, outputs_info=w),
    "a loop with taps": steps(
        lambda a, one, two: a + 0.5 * one - 0.25 * two,
        sequences=y,
        outputs_info={"initial": pt.stack([s, s * 2]), "taps": [-2, -1]},
    )[-2:]
    * 3,
    "a loop that collects": steps(lambda a, b: a * b.sum() + n, sequences=[y, x]),
    "a loop backwards": steps(
        lambda a, before: a * before + 1, sequences=y, outputs_info=s, go_backwards=True
    ),
    "a loop in a loop": steps(
        lambda row, total: total + steps(lambda a, b: a + b**2, sequences=row, outputs_info=s)[-1],
        sequences=x,
        outputs_info=s,
    ),
    "gradients of a loop": list(
        pt.grad(
            (steps(lambda a, before: pt.tanh(a * before + w[0]), sequences=y, outputs_info=s) ** 2).sum(),
            [y, s, w],
        )
    ),
    "gradients of a loop of vectors": list(
        pt.grad((steps(lambda row, h: pt.tanh(row + h * w), sequences=x, outputs_info=w) ** 2).sum(), [x, w])
    ),
    "a part of itself": [
        pt.inc_subtensor(x.sum(axis=0)[i % 3], x.sum(axis=0)[i % 3]) * 2,
        pt.set_subtensor(x.sum(axis=1)[1:], x.sum(axis=1)[:-1]) * 2,
        inc_by_itself(x.sum(axis=0)),
    ],
    "a view that is returned": [y[i].reshape((-1, 1)).T, pt.inc_subtensor(y[i][n], s).sum()],
    "states that change places": [
        state[-1] * 2 for state in steps(lambda a, b: [a + b, a], outputs_info=[w, w * 2], n_steps=5)
    ],
    "a constant that a step changes": steps(
        lambda a, c: pt.inc_subtensor(c[0], a).sum(), sequences=y, non_sequences=x.sum(axis=0)
    ),
    "changes of a row in a step": steps(
        lambda row: (pt.inc_subtensor(row[k[:2] % 3], row[0] + 1) * row).sum(), sequences=x
    ),
    "a row that a step changes and reads": steps(
        lambda row, at: (pt.inc_subtensor(row[at][at[:2]], row[0] + 1) * row[at]).sum(),
        sequences=x,
        non_sequences=k[:3] % 3,
    ),
    "two traces of one start": [
        state[-1] * 2
        for state in steps(
            lambda a, a2, a1, b2, b1: [a1 * a + a2, b1 - a * b2 + a1],
            sequences=y,
            outputs_info=[{"initial": x[i][:2, 0], "taps": [-2, -1]}] * 2,
        )
    ],
    "a loop of so many steps": steps(lambda before: before * 1.1 + s, outputs_info=s, n_steps=n + 3)[-1] + 1,
}

# Graphs of many nodes, each of which other texts have, too.
LONG = (
    "elements that take steps in gradients",
    "gradients of positions along later axes",
    "gradients of a loop",
    "gradients of a loop of vectors",
    "gradients of factors",
    "general systems in gradients and loops",
    "a loop in a loop",
    "a loop with taps",
    "a loop of so many steps",
    "a row that a step changes and reads",
)


def often(names):
    """Return names of texts, those of long ones marked slow."""
    return [slow(name) if name in LONG else name for name in names]
