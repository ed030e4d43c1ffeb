"""PyMC's distributions: no Op of theirs falls back to Python, and numbers are those of PyTensor's own."""

import sys

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm
from pymc.pytensorf import compile as compiled

from synk.compile import ArrayLinker, array_mode

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings(
        "ignore:PyTensor could not link to a BLAS:UserWarning",
        "ignore::FutureWarning:pymc",
        "ignore::FutureWarning:pytensor",
    ),
]

STRICT, PLAIN = array_mode(ArrayLinker(host_ops="raise")), Mode("py", "fast_compile")
EYE, ONES, P, RING = np.eye(2), np.ones(3), np.array([0.2, 0.3, 0.5]), np.ones((3, 3)) - np.eye(3)
CUTS = np.array([-1.0, 1.0])

PARAMETERS = {
    "Normal": (0.0, 1.0),
    "HalfNormal": (1.0,),
    "Uniform": (-1.0, 2.0),
    "Beta": (2.0, 3.0),
    "Exponential": (1.0,),
    "Laplace": (0.0, 1.0),
    "AsymmetricLaplace": (1.0, 2.0, 0.0),
    "LogNormal": (0.0, 1.0),
    "StudentT": (4.0,),
    "HalfStudentT": (4.0, 1.0),
    "Cauchy": (0.0, 1.0),
    "HalfCauchy": (1.0,),
    "Gamma": (2.0, 1.0),
    "InverseGamma": (3.0, 1.0),
    "Weibull": (2.0, 1.0),
    "ChiSquared": (3.0,),
    "Wald": (1.0, 1.0),
    "Pareto": (2.0, 1.0),
    "VonMises": (0.0, 1.0),
    "SkewNormal": (0.0, 1.0),
    "Triangular": (0.0, 1.0, 0.5),
    "Gumbel": (0.0, 1.0),
    "Logistic": (0.0, 1.0),
    "LogitNormal": (0.0, 1.0),
    "Rice": (1.0, 1.0),
    "Moyal": (0.0, 1.0),
    "Kumaraswamy": (2.0, 3.0),
    "ExGaussian": {"mu": 0.0, "sigma": 1.0, "nu": 1.0},
    "TruncatedNormal": (0.0, 1.0),
    "SkewStudentT": (2.0, 3.0),
    "Interpolated": (np.linspace(0, 1, 5), np.ones(5)),
    "Bernoulli": (0.3,),
    "Binomial": (5, 0.3),
    "BetaBinomial": (2.0, 3.0, 5),
    "Poisson": (2.0,),
    "NegativeBinomial": (2.0, 3.0),
    "Geometric": (0.3,),
    "HyperGeometric": (10, 5, 3),
    "DiscreteUniform": (0, 5),
    "DiscreteWeibull": (0.5, 1.0),
    "Categorical": (P,),
    "OrderedLogistic": (0.0, CUTS),
    "OrderedProbit": (0.0, CUTS),
    "ZeroInflatedPoisson": (0.5, 2.0),
    "ZeroInflatedBinomial": (0.5, 5, 0.3),
    "ZeroInflatedNegativeBinomial": (0.5, 2.0, 3.0),
    "HurdlePoisson": (0.5, 2.0),
    "HurdleGamma": (0.5, 2.0, 1.0),
    "HurdleLogNormal": (0.5, 0.0, 1.0),
    "HurdleNegativeBinomial": (0.5, 2.0, 3.0),
    "Dirichlet": (ONES,),
    "Multinomial": (5, P),
    "DirichletMultinomial": (5, ONES),
    "MvNormal": (np.zeros(2), EYE),
    "MvStudentT": {"nu": 5.0, "mu": np.zeros(2), "scale": EYE},
    "Wishart": (4, EYE),
    "LKJCorr": {"n": 3, "eta": 2},
    "MatrixNormal": {"mu": np.zeros((2, 3)), "rowcov": EYE, "colcov": np.eye(3)},
    "KroneckerNormal": {"mu": np.zeros(4), "covs": [EYE, EYE]},
    "CAR": {"mu": np.zeros(3), "W": RING, "alpha": 0.5, "tau": 1.0},
    "StickBreakingWeights": {"alpha": 2.0, "K": 4},
    "ZeroSumNormal": {"shape": 4},
    "NormalMixture": (np.array([0.5, 0.5]), CUTS, 1.0),
    "GARCH11": {"omega": 1.0, "alpha_1": 0.3, "beta_1": 0.3, "initial_vol": 1.0, "steps": 5},
}
OF_OTHERS = {
    "Mixture": lambda: pm.Mixture.dist(w=[0.5, 0.5], comp_dists=[pm.Normal.dist(), pm.StudentT.dist(4)]),
    "GaussianRandomWalk": lambda: pm.GaussianRandomWalk.dist(init_dist=pm.Normal.dist(), steps=5),
    "AR": lambda: pm.AR.dist(rho=[0.1, 0.2], sigma=1.0, init_dist=pm.Normal.dist(shape=2), steps=5),
    "EulerMaruyama": lambda: pm.EulerMaruyama.dist(
        dt=0.1, sde_fn=lambda x, a: (-a * x, 1.0), sde_pars=(1.0,), init_dist=pm.Normal.dist(), steps=5
    ),
    "Censored": lambda: pm.Censored.dist(pm.Normal.dist(), -1.0, 1.0),
    "Truncated": lambda: pm.Truncated.dist(pm.Normal.dist(), -1.0, 1.0),
    "CustomDist": lambda: pm.CustomDist.dist(0.0, dist=lambda m, size: pm.Normal.dist(m, 1.0, size=size)),
}
# Not here: Flat, HalfFlat and ICAR, from which PyMC cannot draw, and PolyaGamma, which needs a package of its
# own and has no gradient.
ON_HOST = ("Interpolated",)  # its spline is SciPy's
OTHER_STREAMS = ("Bernoulli",)  # draws are others than PyTensor's in Python for the same seed


def made(name):
    if name in OF_OTHERS:
        return OF_OTHERS[name]()
    parameters = PARAMETERS[name]
    kind = getattr(pm, name)
    return kind.dist(**parameters) if isinstance(parameters, dict) else kind.dist(*parameters)


@pytest.mark.parametrize("name", [*PARAMETERS, *OF_OTHERS])
def test_draws_densities_and_gradients_are_those_of_pytensor(name):
    variable, modes = made(name), (array_mode() if name in ON_HOST else STRICT, PLAIN)
    drawn, expected = (compiled([], variable, mode=mode, random_seed=1)() for mode in modes)
    if name not in OTHER_STREAMS:
        np.testing.assert_allclose(drawn, expected, rtol=1e-9)
    value = variable.type("value")
    density = pm.logp(variable, value)
    gradients = [pytensor.grad(density.sum(), value)] if value.dtype.startswith("float") else []
    found, expected = (compiled([value], [density, *gradients], mode=mode)(drawn) for mode in modes)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
