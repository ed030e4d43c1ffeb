"""Draw from PyMC's models on all ranks: chains side by side, or the rows of one.

    pm.Model -> sample -> DataTree, as pm.sample returns
             -> find_MAP, fit -> a point, independent normals
             -> compile_logp_dlogp -> LogDensity, for samplers of your own

It needs PyMC 6 and nutpie: ``pip install 'synk[pymc]'``, with Python 3.12 or newer. ``graph`` makes the
log-density of a model, ``rows`` splits its data, ``density`` compiles it, ``chains`` runs on the ranks.
"""

from synk.extensions.pymc import needed  # isort: skip
from synk.extensions.pymc.log_density import LogDensity, compile_logp_dlogp
from synk.extensions.pymc.optimise import find_MAP
from synk.extensions.pymc.sampling import sample
from synk.extensions.pymc.variational import MeanField, fit

__all__ = ["LogDensity", "MeanField", "compile_logp_dlogp", "find_MAP", "fit", "sample"]

del needed
