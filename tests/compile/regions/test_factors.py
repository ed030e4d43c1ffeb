"""Matrices that have no factor, or whose factor solves nothing, end in regions as in Python."""

from functools import cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import ArrayLinker, array_mode

NATIVE, PYTHON = array_mode(), array_mode(ArrayLinker(native=False))


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
