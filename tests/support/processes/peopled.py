"""Scripts of survival whose runs have variables of every kind, Data and functions."""

from support.processes.scripts import WORLD, after

PEOPLED = (
    WORLD
    + '''
from functools import partial
from synk.extensions import train, updates

def people():
    """Add variables of every kind, Data and functions to the world."""
    global w, ragged, draw, sums, d, view, summed, late
    w = pytensor.shared(np.random.default_rng(0).normal(size=5), name="w")
    synk.broadcast(w)
    synk.set_value(1, w, np.arange(5.0))  # not the same on every rank
    ragged = pytensor.shared(np.zeros((4, 2), "f4"), name="ragged")
    synk.scatter(ragged, np.arange(14, dtype="f4").reshape(7, 2))
    sums = synk.function([], (ragged.sum(axis=0), "sum"), sliceable_shareds=[ragged])
    generator = pytensor.shared(np.random.default_rng(3), name="generator")
    following, numbers = pt.random.uniform(size=(2,), rng=generator).owner.outputs
    draw = synk.function([], (numbers, "gather"), updates=[(generator, following)])
    d = synk.data(ROWS, oversize=2)
    view = d.data
    x = pt.vector("x")
    summed = synk.function([x], (x.sum(), "sum"))
    summed(d)
    draw()

def state():
    return [*synk.gather(w), *(synk.get_value(r, ragged) for r in range(len(synk.pids())))]

def same_bits(one, other):
    return [a.tobytes() for a in one] == [b.tobytes() for b in other] and len(one) == len(other)

def check_back(kept, drawn):
    """All is as at the commit, but Data have kept what they hold."""
    assert same_bits(state(), kept)
    assert same_bits([draw(), draw()], drawn)
    assert synk.get_lengths(ragged) == lengths
    assert (sums() == [42, 49]).all()
    rows = sums(batch_s=[[1], [0], *[[]] * (len(lengths) - 2)])
    assert (rows == kept[-len(lengths)][1] + kept[1 - len(lengths)][0]).all()
    assert fine()
    assert summed(d) == view.sum()
    view[0] += 1  # still the same memory, here and there
    assert summed(d) == view.sum() == d.data.sum()
    d[1] = 7.0
    assert summed(d) == view.sum()

def spoil():
    """Do what a restart takes back."""
    synk.all_reduce(w, "sum")
    synk.scatter(ragged, np.zeros((3, 2), "f4"))
    sums()  # so that lengths are known
    draw()
'''
)

peopled = after(PEOPLED)
