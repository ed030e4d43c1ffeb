"""Calls are planned, and refused, without any process: inputs here are arrays."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.exact.define import define
from synk.run.functions.announced_rows import AnnouncedRows
from synk.run.functions.call_plan import plan_call
from synk.run.functions.selections import CallOptions
from synk.values.messages import ArrayRef, RowSpan

X, SCALE, V = pt.matrix("x"), pt.scalar("scale"), pytensor.shared(np.zeros((6, 2)), name="v")
TOTAL = define("total", [X], ((X * SCALE).sum(), "sum"), [SCALE])
SLICED = define("sliced", [X], ((X * V).sum(), "sum"), sliceable_shareds=[V])
ROWS = np.arange(12.0).reshape(6, 2)


class Staging:
    """Staging buffers that keep what is put into them."""

    def __init__(self):
        self.arrays = {}

    def put(self, key, array):
        self.arrays[key] = np.array(array)
        return ArrayRef(len(self.arrays), array.dtype.str, array.shape)


def plan(definition=TOTAL, values=(ROWS, 2.0), lengths=(), n_ranks=2, **options):
    return plan_call(definition, values, CallOptions(**options), lengths, n_ranks, reads_in_place=True)


def step(planned):
    staging = Staging()
    return planned.step(7, staging, AnnouncedRows()), staging.arrays


def test_selected_rows_of_arrays_are_staged_and_no_indices():
    made, staged = step(plan(batch=[4, 1]))
    assert made.batch == RowSpan(0, 2, listed=False)
    assert (made.minibatch, made.indices, made.num_slices) == ((True,), None, 1)
    np.testing.assert_array_equal(staged[7, 0], ROWS[[4, 1]])
    assert staged[7, 1] == 2.0


def test_a_plan_touches_no_memory_and_has_the_inputs_of_one_process():
    x, scale = plan(batch=slice(1, 3)).whole_inputs()
    np.testing.assert_array_equal(x, ROWS[1:3])
    assert scale == 2.0


def test_arrays_have_to_be_looked_at_by_the_next_call():
    planned = plan()
    assert planned.reuse(step(planned)[0]) is None  # of other arrays other rows are staged


def test_a_call_without_scattered_inputs_lasts_while_its_arrays_fit():
    planned = plan(define("constant", [], (SCALE * 2, None), [SCALE]), [3.0])
    made, _ = step(planned)
    assert made.batch is None
    [known] = planned.reuse(made).inputs
    assert (known.position, known.data, known.ref) == (0, None, made.inputs[0])


def test_sliceable_variables_are_selected_by_rank():
    made, _ = step(plan(SLICED, [ROWS], [[3, 3]], batch_s=[slice(0, 2), [2, 0]], batch=4))
    assert made.shares == (RowSpan(0, 2, listed=False), RowSpan(0, 2, listed=True))


WRONG = [
    ({"values": (ROWS[0], 2.0)}, TypeError, "input 'x'"),
    ({"batch": 7}, IndexError, "batch=7 selects more"),
    ({"definition": SLICED, "values": [ROWS], "lengths": [[4, 4]]}, ValueError, r"\(3, 3\) rows.* \(4, 4\)"),
    ({"num_slices": 0}, ValueError, "num_slices=0"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG, ids=[case[2] for case in WRONG])
def test_what_is_wrong_is_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        plan(**wrong)
