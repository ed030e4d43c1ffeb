"""What regions compute, against the same nodes in Python: numbers, shapes, dtypes, and that they do run."""

import itertools
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scalar import ScalarLoop, float64
from pytensor.scan.basic import scan
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.decomposition.lu import pivot_to_permutation
from pytensor.tensor.signal import convolve1d
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from support.slow import slow
from synk.compile import ArrayLinker, array_mode
from synk.compile.compat import AdvancedIncSubtensor1, AdvancedSubtensor1
from synk.compile.programs.elementwise.dialect import native_dialect
from synk.compile.regions.elements import declare
from synk.compile.regions.lines import Text
from synk.compile.regions.region import Region

NATIVE, PYTHON = array_mode(), array_mode(ArrayLinker(native=False))

# Node by node, as graphs are written: rewriting them once more takes as long as all the rest.
AS_WRITTEN = Mode(ArrayLinker(native=False), RewriteDatabaseQuery(include=["minimum_compile"]))

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


AT_POSITIONS = AdvancedSubtensor, AdvancedIncSubtensor, AdvancedSubtensor1, AdvancedIncSubtensor1
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


def compiled(outputs, mode):
    outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    inputs = list(values())
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


@cache
def functions(name):
    """Return the functions of some texts as regions and in Python, compiled once for all tests."""
    return [compiled(TEXTS[name], mode) for mode in (NATIVE, AS_WRITTEN)]


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


def check(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        tolerance = 1e-5 if one.dtype == "float32" else 1e-12
        np.testing.assert_allclose(one, other, tolerance, tolerance)


@pytest.mark.parametrize("name", often(TEXTS))
def test_regions_have_the_numbers_of_python(gave_up, name):
    native, python = functions(name)
    assert any(isinstance(node.op, Region) for node in native.maker.fgraph.apply_nodes)
    for rows in (ROWS, 300, 4):
        arguments = list(values(rows).values())
        check(native(*arguments), python(*arguments))
        assert not gave_up


@pytest.mark.parametrize("name", often(name for name in TEXTS if "positions" in name))
def test_all_that_is_at_positions_is_found_by_regions(name):
    ops = [node.op for node in functions(name)[0].maker.fgraph.apply_nodes]
    assert not [op for op in ops if isinstance(op, AT_POSITIONS)]


@pytest.mark.parametrize("index", ["x[:, i]", "t[:, :, i]", "t[:, i, i]"])
@pytest.mark.parametrize("wrong", [3, -4])
def test_a_position_out_of_range_along_a_later_axis_ends_as_in_python(gave_up, index, wrong):
    index = eval(index)
    for mode in (NATIVE, PYTHON):
        function = pytensor.function([x, t, i], index * 2, mode=mode, on_unused_input="ignore")
        for rows in (4, 0):
            arguments = np.ones((rows, 3)), np.ones((rows, 3, 3)), np.zeros(400, "int64")
            assert (function(*arguments) == 2).all()
            for at in (0, 399):
                arguments[2][at], right = wrong, arguments[2][at]
                with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
                    function(*arguments)
                arguments[2][at] = right
    assert gave_up


class Apart(np.ndarray):
    """An array of another class."""


LAYOUTS = {
    "Fortran": lambda a: a.copy(order="F"),
    "reversed": lambda a: a[::-1].copy()[::-1] if a.ndim else a,
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "subclass": lambda a: a.view(Apart),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    [
        "arithmetic",
        "sums along rows",
        "reshapes",
        "products with vectors",
        "slices",
        "blocks of factors",
        "blocks of products",
        "blocks of solutions",
        "sums along each axis",
        "convolutions",
        "matrices along a diagonal",
        "positions along later axes",
        "changes at positions along later axes",
        "numbers at positions",
    ],
)
def test_arrays_may_lie_in_any_way(monkeypatch, name, layout):
    native, python = functions(name)
    monkeypatch.setattr(native, "trust_input", True)
    arguments = list(values().values())
    check(native(*[LAYOUTS[layout](np.asarray(value)) for value in arguments]), python(*arguments))


NEED_ROWS = (
    "extremes",
    "slices",
    "changed parts",
    "reshapes",
    "a view that is returned",
    "two traces of one start",
    "blocks of solutions",
    "sums along each axis",
    "convolutions",
)


@pytest.mark.parametrize(
    "name", often(name for name in TEXTS if name not in NEED_ROWS and "loop" not in name)
)
def test_arrays_without_rows(name):
    native, python = functions(name)
    arguments = list(values(0).values())
    check(native(*arguments), python(*arguments))


def test_results_are_new_arrays_and_arguments_stay_as_they_are():
    outputs = [x[i], pt.inc_subtensor(x[i], x), x.reshape((-1,)) + 0.0, pt.join(0, x, x), x.T * 1.0, x + 0]
    native = compiled(outputs, NATIVE)
    given = values()
    before = {variable: np.array(value) for variable, value in given.items()}
    first = native(*given.values())
    second = native(*given.values())
    for one in first:
        assert one.flags.writeable
        assert not any(np.shares_memory(one, other) for other in (*second, *given.values()))
    for variable, value in given.items():
        np.testing.assert_array_equal(value, before[variable])


@cache
def factors_and_solutions():
    a, b = pt.dmatrix("a"), pt.dtensor3("b")
    stack = pt.stack([a, a * 2])
    outputs = [pt.linalg.cholesky(stack), pt.linalg.solve_triangular(stack, b, lower=True)]
    return [pytensor.function([a, b], outputs, mode=mode) for mode in (NATIVE, PYTHON)]


@pytest.mark.parametrize("rows", [3, 60])
@pytest.mark.parametrize("bad", ["no factor", "singular", "another length", "NaN"])
def test_matrices_without_an_answer_end_as_in_python(rows, bad):
    matrix, columns = 2 * np.eye(rows), np.ones((2, rows + (bad == "another length"), 4))
    matrix[1, 1] = {"no factor": -2, "singular": 0, "NaN": np.nan}.get(bad, 2)
    found = []
    for function in factors_and_solutions():
        try:
            found.append(function(matrix, columns))
        except (ValueError, TypeError, np.linalg.LinAlgError) as error:
            found.append(type(error))
    np.testing.assert_equal(*found)


@cache
def of_general_matrices(op):
    a = pt.dmatrix("a")
    output = pt.linalg.solve(a, a[:, 0]) if op == "solve" else getattr(pt.linalg, op)(a * 2)
    return [pytensor.function([a], output, mode=mode) for mode in (NATIVE, PYTHON)]


@pytest.mark.parametrize("bad", ["singular", "NaN", "not square", "nothing"])
@pytest.mark.parametrize("op", ["solve", "inv", "slogdet", "det"])
def test_general_matrices_without_an_answer_end_as_in_python(op, bad):
    matrix = np.diag([1.0, 2, 3])[:, : 2 if bad == "not square" else 3]
    matrix[1, 1] = {"singular": 0, "NaN": np.nan}.get(bad, 2)
    found = []
    for function in of_general_matrices(op):
        try:
            found.append(function(matrix[:0, :0] if bad == "nothing" else matrix))
        except (ValueError, IndexError, np.linalg.LinAlgError) as error:
            found.append(type(error))
    np.testing.assert_equal(*found)


@cache
def products_of_long_vectors():
    a, v = pt.dmatrix("a"), pt.dvector("v")
    return pytensor.function([a, v], [a @ v, (a @ v[::-1])[::-1], v @ a.T], mode=NATIVE)


@pytest.mark.parametrize("steps", [(1, 1), (-1, 1), (1, -1), (-1, -1), (2, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_products_of_long_vectors_read_matrices_as_they_lie(steps, order):
    rng = np.random.default_rng(1)
    whole = np.asarray(rng.normal(size=(140, 160)), order=order)
    matrix = whole[:: steps[0], :: steps[1]]
    for step in (1, -1, 3):
        vector = rng.normal(size=(3 * matrix.shape[1],))[::step][: matrix.shape[1]]
        products = products_of_long_vectors()(matrix, vector)
        check(products, [matrix @ vector, (matrix @ vector[::-1])[::-1], matrix @ vector])


def unless_wrong(function, arguments):
    try:
        return function(*arguments)
    except (ValueError, IndexError, OverflowError):
        return []


EXTREMES = (0, 1, -2, 2**62, -(2**62), 2**63 - 1, -(2**63))


@pytest.mark.parametrize("name", ["slices", "ranges", slow("large positions")])
def test_numbers_may_be_extreme(name):
    start, stop, step = pt.lscalars("start", "stop", "step")
    large = pt.scalar("large", dtype="uint64")
    outputs = {
        "slices": [y[start:stop:step] * 2],
        "ranges": [pt.arange(start, stop, step) * 2],
        "large positions": [y[large] * 2],
    }[name]
    inputs = [y, start, stop, step, large]
    native, python = (
        pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore") for mode in (NATIVE, PYTHON)
    )
    for a, b, c in itertools.product(EXTREMES, EXTREMES, EXTREMES[1:]):
        if name == "ranges" and abs(c) < 2**62:
            continue  # many numbers
        arguments = [np.arange(5.0), a, b, c, np.uint64(a % 2**64)]
        with np.errstate(over="ignore"):
            check(unless_wrong(native, arguments), unless_wrong(python, arguments))


def test_an_integer_has_no_negative_zero():
    whole = [y.astype(dtype) for dtype in ("int32", "int64")]
    outputs = [1 / (whole[0] + x), 1 / whole[0], 1 / whole[1], y // whole[0]]
    for mode in (NATIVE, PYTHON):
        function = pytensor.function([x, y], outputs, mode=mode)
        with np.errstate(all="ignore"):
            results = function(np.zeros((3, 40)), np.full(40, -0.5))
        assert [float(result.flat[0]) for result in results] == [np.inf, np.inf, np.inf, -np.inf]


def test_a_text_is_the_same_in_each_process():
    # Libraries are kept by it, and in another process sets come in another order.
    calls = [
        ("fabs", "float64", 1),
        ("log1p", "float64", 1),
        ("exp", "float32", 1),
        ("scipy_betainc", "float64", 1),
    ]
    texts = set()
    for functions in itertools.permutations(calls):
        text = Text()
        declare(text, native_dialect(), SimpleNamespace(functions=functions))
        texts.add(tuple(text.declarations))
    assert len(texts) == 1
