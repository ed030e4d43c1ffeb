"""The parts of an all-reduce follow from the program: ranks agree, whatever each has compiled before."""

import numpy as np
import pytensor.tensor as pt
import pytest

import synk
from support.cases.small_training import network
from synk.extensions.gradients import flat_gradient
from synk.gpu.speedups import overlapping


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(overlapping, "PART_BYTES", 256)


def test_another_function_that_tells_of_the_variable_does_not_matter(gpus):
    gpus(2, overlap=True)
    loss, (x, labels), parameters = network(np.random.default_rng(5))
    flat, expression, _ = flat_gradient(loss, parameters)
    gradient = synk.function([x, labels], loss, updates=[(flat, expression, "sum")])
    total = synk.function([x], updates=[(flat, pt.alloc(x.sum(), flat.get_value().size), "sum")])
    rows = np.ones((2, 6))
    gradient(rows, np.zeros(2, "int64"), batch=1)  # rank 1 has no rows, so it does not compile what tells
    synk.sequence(total, (synk.all_reduce, flat, "sum"))(rows)
    np.testing.assert_array_equal(synk.gather(flat, nd_up=1), np.full((2, flat.get_value().size), 12.0))
