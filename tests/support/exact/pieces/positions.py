"""Pieces that read and write at positions: slices, masks, indices."""

import pytensor.tensor as pt

from support.exact.pieces.registry import piece


@piece(6)
def sliced(g):
    x = g.any(1, 2, 3)
    makes = [
        lambda: x[0],
        lambda: x[-1],
        lambda: x[:3],
        lambda: x[1:],
        lambda: x[:-1],
        lambda: x[::2],
        lambda: x[::-1],
        lambda: x[-3:],
        lambda: x[: x.shape[0] // 2],
        lambda: x[1],
    ]
    columns = [
        lambda: x[:, 0],
        lambda: x[:, -1],
        lambda: x[:, 1:],
        lambda: x[:, ::-1],
        lambda: x[..., 0],
        lambda: x[:, :2],
        lambda: x[:, ::2],
        lambda: x[..., None, 0],
        lambda: x[:, g.whole_number(2)],
    ]
    return g.one_of(columns if x.ndim > 1 and g.chance(0.7) else makes)()


@piece(3)
def masked(g):
    x = g.any(1, 2)
    mask = g.fitting(lambda v: v.dtype == "bool" and g.dims(v) == g.dims(x)[:1])
    return g.one_of([lambda: x[mask], lambda: x[mask.nonzero()], lambda: x[pt.nonzero(mask)[0]]])()


@piece(4)
def of_tables(g):
    labels = g.labels()
    table = g.fitting(lambda v: v.ndim >= 1 and g.length(v, 0) == 5)
    makes = [lambda: table[labels], lambda: pt.take(table, labels, axis=0)]
    if table.ndim > 1:
        makes += [
            lambda: table[labels, 0],
            lambda: table.T[:, labels],
            lambda: table[labels, labels % table.shape[1]],
        ]
    return g.one_of(makes)()


@piece(4)
def by_row(g):
    x = g.any(2)
    labels = g.fitting(lambda v: v.dtype == "int64" and g.dims(v) == g.dims(x)[:1])
    column = abs(labels) % x.shape[1]
    makes = [
        lambda: x[pt.arange(x.shape[0]), column],
        lambda: x[pt.arange(labels.shape[0]), column],
        lambda: pt.take_along_axis(x, column[:, None], axis=1),
        lambda: pt.eq(column[:, None], pt.arange(x.shape[1])[None]),
        lambda: x[:, column % 2],
        lambda: pt.set_subtensor(x[pt.arange(x.shape[0]), column], 0),
        lambda: pt.inc_subtensor(x[pt.arange(x.shape[0]), column], 1),
    ]
    return g.one_of(makes)()


@piece(2)
def picked(g):
    x = g.any(1, 2)
    chosen = g.one_of([[0, 1], [1, 0, 0], [-1, 0]])
    return g.one_of([lambda: x[chosen], lambda: x.T[chosen].T, lambda: x[..., chosen]])()


@piece(4)
def written(g):
    x = g.real(1, 2, 3)
    v = g.real(0)
    inner = g.same(x)
    write = g.one_of([pt.set_subtensor, pt.inc_subtensor])
    makes = [
        lambda: write(x[0], v),
        lambda: write(x[:2], v),
        lambda: write(x[-1], inner[0]),
        lambda: write(x[1:], inner[1:]),
    ]
    if x.ndim > 1:
        makes += [
            lambda: write(x[:, 0], v),
            lambda: write(x[:, 0], inner[:, 0]),
            lambda: write(x[:, 1:], inner[:, 1:]),
            lambda: write(pt.zeros_like(x)[:, 0], inner[:, 0]),
            lambda: write(x[:, [0, 1]], inner[:, [1, 0]]),
        ]
    return g.one_of(makes)()


@piece(2)
def written_where(g):
    x = g.real(1, 2)
    mask = g.fitting(lambda v: v.dtype == "bool" and g.dims(v) == g.dims(x)[:1])
    write = g.one_of([pt.set_subtensor, pt.inc_subtensor])
    return g.one_of([lambda: write(x[mask], 0.5), lambda: write(x[mask], g.same(x)[mask])])()


@piece(3)
def scattered_to(g):
    labels = g.labels(1)
    x = g.fitting(lambda v: v.dtype == "float64" and v.ndim in (1, 2) and g.dims(v)[:1] == g.dims(labels)[:1])
    table = pt.zeros((5, *[x.shape[k] for k in range(1, x.ndim)]))
    makes = [
        lambda: pt.inc_subtensor(table[labels], x),
        lambda: pt.inc_subtensor(table[labels], 1),
        lambda: pt.set_subtensor(table[labels], x),
        lambda: pt.bincount(labels, minlength=5),
        lambda: pt.bincount(labels, weights=x[..., 0] if x.ndim > 1 else x, minlength=5),
    ]
    return g.one_of(makes)()
