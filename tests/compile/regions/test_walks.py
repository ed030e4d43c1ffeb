"""Folds along rows: what they compute, and that compilers make vector instructions of them."""

import subprocess

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import array_mode
from synk.compile.native.compiler import FLAGS, find_compiler
from synk.compile.regions.frame import source_file
from synk.compile.regions.walks import Fold, fold_text

CHOICE = "b > a || b != b ? b : a"
STEP = "for (int k = 0; k < 8; k++)"  # of eight elements at a time


def made_of(source):
    """Return what GCC says of the vectors that it makes."""
    said = ["-fopt-info-vec-optimized", "-x", "c", "-o", "/dev/null", "-"]
    command = [*find_compiler().command, *FLAGS, *said]
    done = subprocess.run(command, input=source, text=True, capture_output=True, check=True)
    return done.stderr


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_largest_of_a_row_is_found_by_vectors(dtype):
    text = fold_text(Fold(dtype, (0,), CHOICE, "0")).replace("SHARED", "").replace("NAME", "largest")
    source = source_file({}, set()) + "\n#line 1\n" + text
    if "clang" in subprocess.check_output([*find_compiler().command, "--version"], text=True):
        pytest.skip("only GCC says which loops are vectors")
    _, step, *_ = [k for k, line in enumerate(text.split("\n"), start=1) if STEP in line]
    assert f"<stdin>:{step}:" in made_of(source)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [1, 7, 15, 16, 24, 29, 300])
def test_nan_is_the_largest_and_the_smallest_wherever_it_stands(n, dtype):
    x = pt.matrix("x", dtype=dtype)
    function = pytensor.function([x], [x.max(axis=1), x.min(axis=1)], mode=array_mode())
    rows = np.random.default_rng(n).normal(size=(n + 1, n)).astype(dtype)
    rows[np.arange(n), np.arange(n)] = np.nan  # but for the last one
    np.testing.assert_array_equal(function(rows), [rows.max(axis=1), rows.min(axis=1)])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_loops_that_differ_in_constants_have_the_same_rows(dtype):
    x, y = pt.vector("x", dtype=dtype), pt.vector("y", dtype=dtype)
    first, second, third, fourth = np.random.default_rng(1).normal(size=4).astype(dtype)
    outputs = [first * pt.sqr(x) + second, third * pt.sqr(y) + fourth]
    function = pytensor.function([x, y], outputs, mode=array_mode())
    (region,) = function.maker.fgraph.apply_nodes
    text = "\n".join(region.op.text.declarations)
    assert (text.count("static const Loop"), text.count("_row0(const long")) == (2, 1)
    values = np.random.default_rng(2).normal(size=(2, 20)).astype(dtype)
    expected = first * values[0] ** 2 + second, third * values[1] ** 2 + fourth
    np.testing.assert_array_equal(function(*values), expected)
