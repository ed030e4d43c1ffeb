"""Functions of scipy.special in regions: the very bits of its ufuncs, in both precisions."""

import subprocess
import sys
from itertools import chain

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.special
from pytensor.scalar import math
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from synk.compile import array_mode
from synk.compile.native.special import PREFIX
from synk.compile.programs.elementwise.templates_math import FUNCTIONS as TEMPLATES
from synk.compile.regions.region import Region

SPECIAL = {kind: name for kind, name in TEMPLATES.items() if name.startswith(PREFIX)}


def arguments(count, dtype):
    """Return numbers of all sizes and signs, and some that lie where functions are defined."""
    rng = np.random.default_rng(count)
    values = [
        np.concatenate([rng.normal(size=300) * 5, 10.0 ** rng.uniform(-30, 30, 100), rng.uniform(size=600)])
        for _ in range(count)
    ]
    odd = np.array([0, -0.0, 1, -1, 0.5, 171, np.inf, -np.inf, np.nan])
    return [np.concatenate([value, np.roll(odd, k)]).astype(dtype) for k, value in enumerate(values)]


@pytest.fixture(scope="module", params=["float32", "float64"])
def results(request):
    """Return what one region makes of all functions, and the arguments by their number."""
    given = {n: arguments(n, request.param) for n in (1, 2, 3, 4)}
    variables = {n: [TensorType(request.param, (None,))() for _ in values] for n, values in given.items()}
    outputs = {
        type(op): Elemwise(op)(*variables[op.nfunc_spec[1]])
        for op in vars(math).values()
        if type(op) in SPECIAL
    }
    function = pytensor.function([*chain(*variables.values())], [*outputs.values()], mode=array_mode())
    assert all(isinstance(node.op, Region) for node in function.maker.fgraph.apply_nodes)
    found = function(*chain(*given.values()))
    return dict(zip(outputs, found, strict=True)), given


@pytest.mark.parametrize("kind", SPECIAL, ids=lambda kind: kind.__name__)
def test_a_region_has_the_bits_of_scipy(results, kind):
    found, given = results
    name, n_inputs, _ = kind.nfunc_spec
    with np.errstate(all="ignore"):
        expected = getattr(scipy.special, name.rpartition(".")[2])(*given[n_inputs])
    assert found[kind].dtype == expected.dtype == given[1][0].dtype
    np.testing.assert_array_equal(found[kind], expected)


@pytest.mark.slow
def test_a_program_without_them_does_not_load_them():
    text = (
        "import sys, pytensor, pytensor.tensor as pt; from synk.compile import array_mode; x = pt.dvector();"
        "pytensor.function([x], pt.exp(x) * 2, mode=array_mode())([1.0]);"
        "assert 'scipy.special.cython_special' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_the_gradient_of_a_density_with_counts_is_one_region():
    k, log_rate = pt.dvector(), pt.dscalar()
    rate = pt.exp(log_rate)
    density = (pt.gammaln(k + rate) - pt.gammaln(rate)).sum()
    slope = pytensor.grad(density, log_rate)
    function = pytensor.function([k, log_rate], [density, slope], mode=array_mode())
    assert len(function.maker.fgraph.apply_nodes) == 1
    counts = np.array([0.0, 3, 7])
    found = function(counts, 0.3)[1]
    psi = scipy.special.psi
    np.testing.assert_allclose(
        found, np.exp(0.3) * (psi(counts + np.exp(0.3)) - psi(np.exp(0.3))).sum(), 1e-12
    )
