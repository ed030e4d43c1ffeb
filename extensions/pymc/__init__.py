"""Draw from PyMC's models on all ranks: chains side by side, or the rows of one.

    pm.Model -> sample -> DataTree, as pm.sample returns
             -> find_MAP, fit -> a point, independent normals
             -> compile_logp_dlogp -> LogDensity, for samplers of your own
    DataTree -> sample_posterior_predictive, compute_log_likelihood -> further groups of it

It needs PyMC 6 and nutpie: ``pip install 'synk-pytensor[pymc]'``, with Python 3.12 or newer. ``graph`` makes
the log-density of a model, ``rows`` splits its data, ``density`` compiles it, ``chains`` runs on the ranks;
``parts`` has PyMC evaluate a model at draws.
"""

from synk.extensions.pymc import needed  # isort: skip
from synk.extensions.pymc.draws import compute_log_likelihood, sample_posterior_predictive
from synk.extensions.pymc.log_density import LogDensity, compile_logp_dlogp
from synk.extensions.pymc.optimise import find_MAP
from synk.extensions.pymc.sampling import sample
from synk.extensions.pymc.variational import MeanField, fit

__all__ = [
    "LogDensity",
    "MeanField",
    "compile_logp_dlogp",
    "compute_log_likelihood",
    "find_MAP",
    "fit",
    "sample",
    "sample_posterior_predictive",
]

del needed


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__
