"""A region takes its memory once, gives it back, and says where there is not enough."""

import gc
import resource
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytensor.tensor as pt
import pytest

from support.regions.compiled import compiled, regions_of


@pytest.mark.slow
def test_nothing_is_kept_of_a_call():
    x = pt.matrix("x")
    function = compiled([x], [(x * 2).T.reshape((-1,)) + 1, x.sum(axis=0), x[::-1] * 2])
    function.trust_input = True
    big = np.ones((400, 500))
    count = sys.getrefcount(big)
    function(big)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        function(big)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # kilobytes
    assert grown < 20_000
    assert sys.getrefcount(big) == count


@pytest.mark.slow
def test_nothing_is_kept_of_a_call_that_fails():
    x, i = pt.matrix("x"), pt.lvector("i")
    function = compiled([x, i], [x.T.reshape((-1,)) * 2, (x * 2)[i].sum()])
    big = np.ones((400, 500))
    for k in range(40):  # 1.6 MB each, or more
        with suppress(IndexError):
            function(big, [1000])
        if k == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


WIDE = """
import resource
resource.setrlimit(resource.RLIMIT_STACK, (600 << 10, resource.RLIM_INFINITY))  # bytes
import numpy as np, pytensor, pytensor.tensor as pt
from synk.compile import array_mode
xs = pt.dvectors(300)
function = pytensor.function(xs, [pt.add(*xs) * 2, pt.add(*xs).sum()], mode=array_mode())
given = [np.arange(k, k + 1400.0)[::2] for k in range(300)]
found = function(*given)
for one, other in zip(found, function(*map(np.ascontiguousarray, given))):
    np.testing.assert_allclose(one, other)
"""


@pytest.mark.slow
def test_a_loop_over_many_operands_that_lie_apart_fits_on_a_small_stack():
    subprocess.run([sys.executable, "-c", WIDE], check=True)


def test_what_memory_there_is_not_for_is_a_memory_error():
    n = pt.lscalar("n")
    function = compiled([n], (pt.arange(n) * 2).sum())
    assert regions_of(function)
    for number in (2**45, 2**61):
        with pytest.raises((MemoryError, ValueError)):
            function(number)
    assert function(5) == 20


def test_numbers_of_elements_beyond_all_that_c_counts_are_refused():
    x, n, m = pt.dvector("x"), pt.lscalar("n"), pt.lscalar("m")
    grouped = compiled([x, n, m], pt.exp(pt.reshape(x, (n, m))[:7]).sum())
    repeated = compiled([n], pt.set_subtensor(pt.alloc(np.int8(1), n)[0], 3).max())
    for function in (grouped, repeated):
        assert regions_of(function)
    with pytest.raises(ValueError, match="reshape"):
        grouped(np.arange(4.0), 2**62 + 1, 4)  # 4 times as many are 4 again, beyond 2**64
    for number in (2**63 - 1, 2**63 - 63):
        with pytest.raises((MemoryError, ValueError)):
            repeated(number)
    assert repeated(5) == 3
