"""A function is checked as a whole when it is built."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import synk
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


def test_givens_apply_first():
    x, y, z = pt.vector("x"), pt.vector("y"), pt.vector("z")
    v = pytensor.shared(np.array([1.0, 2.0]), name="v")
    total = pytensor.shared(0.0, name="total")
    f = synk.function([x], ((y * z[0]).sum(), "sum"), updates=[(total, z.sum())], givens={y: x + 1, z: v})
    assert f(np.arange(4.0)) == 10
    assert total.get_value() == 3
    assert synk.function([x], ((y * 2).sum(), "sum"), givens=[(y, x)])(np.arange(4.0)) == 12
    constant = synk.function([x], ((x * y[0]).sum(), "sum"), givens={y: np.array([3.0])})
    assert constant(np.arange(4.0)) == 18
    # A shared variable may be replaced, too.
    assert synk.function([x], (v.sum(), "sum"), givens={v: x})(np.arange(4.0)) == 6


@pytest.mark.parametrize(
    "mode", ["NUMBA", "FAST_RUN", "fast_run", "C", Mode("numba", None)], ids=lambda mode: str(mode)[:9]
)
def test_modes_in_which_ranks_cannot_meet_are_refused_when_it_is_built(mode):
    x = pt.vector("x")
    with pytest.raises(
        ValueError, match=r"mode=.*ranks cannot meet: leave mode out .* such as 'FAST_COMPILE'"
    ):
        synk.function([x], x.std(), mode=mode)


def test_unused_inputs_may_be_ignored():
    x, y = pt.vector("x"), pt.vector("y")
    f = synk.function([x, y], (x.sum(), "sum"), on_unused_input="ignore")
    assert f(np.ones(4), np.ones(4)) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of default updates
def test_updating_a_sliceable_variable_is_refused():
    rows = pytensor.shared(np.ones(4), name="rows")
    with pytest.raises(ValueError, match="'rows' is sliceable, so this function cannot update it"):
        synk.function([], rows.sum(), updates=[(rows, rows + 1)], sliceable_shareds=[rows])
    rows.default_update = rows + 1
    with pytest.raises(ValueError, match="'rows' is sliceable"):
        synk.function([], rows.sum(), sliceable_shareds=[rows])
