import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan import until

import synk
from synk.compile import array_mode
from synk.compile.rewriting.until_gradients import WRONG, check_until_gradients

S = np.arange(1.0, 5)


def sum_of_squares():
    s = pt.dvector("s")
    rows = pytensor.scan(
        lambda s, total: (total + s**2, until(total + s**2 > 4.5)),
        sequences=[s],
        outputs_info=[pt.as_tensor(np.float64(0))],
        return_updates=False,
    )
    return s, rows[-1]


def test_the_gradient_is_of_the_steps_that_were_made_or_refused():
    s, total = sum_of_squares()
    gradient = pt.grad(total, s)
    if WRONG:
        with pytest.raises(NotImplementedError, match="(?s)use PyTensor 3.1.1.*test_until_gradients.py"):
            pytensor.function([s], gradient, mode=array_mode())
    else:
        np.testing.assert_array_equal(pytensor.function([s], gradient, mode=array_mode())(S), [2, 4, 0, 0])


@pytest.mark.skipif(not WRONG, reason="this PyTensor has mended it")
@pytest.mark.slow
def test_pytensor_alone_is_still_wrong():
    s, total = sum_of_squares()
    plain = pytensor.function([s], pt.grad(total, s), mode="FAST_COMPILE")
    assert not np.array_equal(plain(S), [2, 4, 0, 0])


def test_other_loops_have_gradients():
    s, total = sum_of_squares()
    check_until_gradients([total])
    rows = pytensor.scan(lambda s: (s**2, until(s > 1)), sequences=[s], return_updates=False)
    function = pytensor.function([s], pt.grad(rows.sum(), s), mode=array_mode())
    np.testing.assert_array_equal(function(S), [2, 4, 0, 0])


@pytest.mark.skipif(not WRONG, reason="this PyTensor has mended it")
def test_a_gradient_of_the_wrong_steps_is_refused_when_the_function_is_made(ranks):
    ranks(1)
    s, total = sum_of_squares()
    with pytest.raises(NotImplementedError, match="(?s)use PyTensor 3.1.1.*test_until_gradients.py"):
        synk.function([], pt.grad(total, s), bcast_inputs=[s])
