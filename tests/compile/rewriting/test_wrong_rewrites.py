import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, optdb
from pytensor.graph.replace import clone_replace

from synk.compile import array_mode, without_wrong
from synk.compile.rewriting.wrong_rewrites import KNOWN_WRONG, names_in, release_of

PLAIN = Mode("py", "fast_run")
INSTALLED = names_in(release_of(pytensor.__version__))
TWICE = np.array([0, 2, 2])


def set_of_a_read():
    x, i = pt.dvector("x"), pt.lvector("i")
    start = np.zeros(3)
    expected = start.copy()
    expected[TWICE] = start[TWICE] + 1
    return [x, i], pt.set_subtensor(x[i], x[i] + 1), [start, TWICE], expected


def sum_with_a_set():
    x, y, i = pt.dvector("x"), pt.dvector("y"), pt.lvector("i")
    written = np.zeros(3)
    written[TWICE] = [1, 2, 3]
    return [x, y, i], x + pt.zeros(3)[i].set(y), [np.ones(3), np.arange(1.0, 4), TWICE], 1 + written


def read_of_a_set():
    y, i = pt.dvector("y"), pt.lvector("i")
    written = np.zeros(4)
    written[TWICE] = [1, 2, 3]
    return [y, i], pt.set_subtensor(pt.zeros(4)[i], y)[i], [np.arange(1.0, 4), TWICE], written[TWICE]


def two_increments_of_bytes():
    x, y = pt.lvector("x"), pt.bvector("y")
    step = np.array([100, 1], "int8")
    expected = np.zeros(3, "int64")
    expected[:2] += step
    expected[:2] += step
    return [x, y], x[:2].inc(y)[:2].inc(y), [np.zeros(3, "int64"), step], expected


def two_increments_of_truth_values():
    x, y = pt.lvector("x"), pt.vector("y", dtype="bool")
    expected = np.zeros(3, "int64")
    expected[:2] += [2, 0]
    return [x, y], x[:2].inc(y)[:2].inc(y), [np.zeros(3, "int64"), np.array([True, False])], expected


def two_increments_without_repeats():
    x, i = pt.dvector("x"), pt.lvector("i")
    once = x[i].inc(1.0, ignore_duplicates=True)
    expected = np.zeros(3)
    expected[TWICE] += 1
    expected[TWICE] += 1
    return [x, i], once[i].inc(1.0, ignore_duplicates=True), [np.zeros(3), TWICE], expected


def floor_of_a_float():
    x = pt.dvector("x")
    return [x], x // 1.0, [np.array([0.5, -0.5])], np.array([0.5, -0.5]) // 1.0


def logarithm_of_a_half():
    x = pt.dscalar("x")
    return [x], pt.log(x / 2), [2.0], np.log(2.0 / 2)


CASES = {
    "local_set_to_inc_subtensor": [set_of_a_read],
    "local_add_of_sparse_write": [sum_with_a_set],
    "local_read_of_write_same_indices": [read_of_a_set],
    "local_write_of_write_same_indices": [
        two_increments_of_bytes,
        two_increments_of_truth_values,
        two_increments_without_repeats,
    ],
    "local_div_by_one": [floor_of_a_float],
    "local_log_div": [logarithm_of_a_half],
}
EACH = [case for cases in CASES.values() for case in cases]


def computed(case, mode):
    inputs, output, values, _ = case()
    return pytensor.function(inputs, output, mode=mode)(*values)


@pytest.mark.parametrize("case", EACH)
def test_the_numbers_are_numpys(case):
    np.testing.assert_allclose(computed(case, array_mode()), case()[-1], rtol=0, atol=1e-15)


@pytest.mark.parametrize("case", EACH)
def test_a_mode_of_the_script_gives_numpys_numbers_too(case):
    np.testing.assert_allclose(computed(case, without_wrong(PLAIN)), case()[-1], rtol=0, atol=1e-15)


@pytest.mark.parametrize("case", [set_of_a_read, read_of_a_set, two_increments_of_bytes])
def test_steps_of_loops_are_rewritten_without_them(case):
    inputs, output, values, expected = case()

    def step(*inner):
        return clone_replace(output, dict(zip(inputs, inner, strict=True)))

    steps = pytensor.scan(step, non_sequences=inputs, n_steps=2, return_updates=False)
    function = pytensor.function(inputs, steps, mode=array_mode())
    np.testing.assert_array_equal(function(*values), [expected, expected])


@pytest.mark.parametrize("name", INSTALLED)
def test_pytensor_alone_is_still_wrong(name):
    """Where this fails, a release has mended the rewrite: say so in `KNOWN_WRONG`, and it is run again."""
    assert any(not np.allclose(computed(case, PLAIN), case()[-1], rtol=0, atol=1e-15) for case in CASES[name])


def test_pytensor_still_passes_gradients_to_values_that_are_written_over():
    """Where this fails, a release has mended the gradient: take it out of docs/linker.rst."""
    y, i, weights = pt.dvector("y"), pt.lvector("i"), pt.dvector("weights")
    total = (weights * pt.zeros(3)[i].set(y)).sum()
    function = pytensor.function([y, i, weights], [total, pytensor.grad(total, y)], mode=array_mode())
    value, factors = np.array([1.0, 2, 3]), np.array([1.0, 10, 100])
    found, gradient = function(value, TWICE, factors)
    moved, _ = function(np.array([1.0, 7, 3]), TWICE, factors)
    assert moved == found  # y[1] is written over by y[2], and has no part in the total
    assert gradient[1] == factors[TWICE[1]]


def test_each_known_rewrite_has_a_case():
    assert {rewrite.name for rewrite in KNOWN_WRONG} == set(CASES)


def test_a_rewrite_is_left_out_in_the_releases_that_are_wrong_only():
    versions = ("3.0.4", "3.0.7+2.gabc", "3.1.1", "3.3.8")
    names = {version: names_in(release_of(version)) for version in versions}
    assert "local_log_div" not in names["3.0.4"]
    assert "local_log_div" in names["3.0.7+2.gabc"]
    assert "local_log_div" not in names["3.1.1"]
    assert "local_set_to_inc_subtensor" in names["3.1.1"]
    assert "local_set_to_inc_subtensor" not in names["3.3.8"]


def test_a_rewriter_that_is_made_already_is_kept():
    mode = Mode("py", optdb.query("+minimum_compile"))
    assert without_wrong(mode) is mode
