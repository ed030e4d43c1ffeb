"""Draw new observations for a posterior, and compute its log-likelihoods, with its draws on all ranks.

sample_posterior_predictive, compute_log_likelihood -> Task -> over_draws -> a tree, as PyMC returns it
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm
import xarray
from pymc.model.transform.optimization import freeze_model
from pymc.util import get_random_generator

from synk.extensions.pymc.parts import WHOLE, Task, over_draws
from synk.extensions.pymc.runs import model_of

STREAMS = 64  # of random numbers, each for its part of the draws


class Predictive:
    """Draws new observations for a trace."""

    def __init__(self, model: Any, options: Mapping[str, Any]):
        self._model, self._options = freeze_model(model), options  # frozen, it compiles once for all traces

    def __call__(self, trace: Any, seed: int, **compiled: Any) -> dict[str, Any]:
        options = {"random_seed": seed, "progressbar": False, **self._options, **compiled}
        found = pm.sample_posterior_predictive(trace, self._model, **options)
        return {name: group.to_dataset() for name, group in found.children.items()}


class Likelihood:
    """Computes the log-likelihood of each observation for a trace."""

    def __init__(self, model: Any, options: Mapping[str, Any]):
        self._options = {"model": model, "extend_inferencedata": False, "progressbar": False, **options}

    def __call__(self, trace: Any, seed: int, **compiled: Any) -> dict[str, Any]:
        return {"log_likelihood": pm.compute_log_likelihood(trace, **self._options, **compiled)}


def sample_posterior_predictive(
    trace: Any,
    model: Any = None,
    *,
    var_names: str | Sequence[str] | None = None,
    sample_vars: str | Sequence[str] | None = None,
    freeze_vars: str | Sequence[str] | None = None,
    sample_dims: Sequence[str] = ("chain", "draw"),
    random_seed: Any = None,
    progressbar: bool = True,
    extend_inferencedata: bool = False,
    predictions: bool = False,
    cores: int | None = None,
) -> Any:
    """Draw new observations for each draw of a posterior, on all ranks, as PyMC does.

    The draws are split into 64 parts, each with a stream of random numbers of its own, so the same seed gives
    the same numbers whatever the number of ranks; they are not those of PyMC for that seed. Each rank has
    PyMC draw its parts, by a function that synk compiles. Without a run it forks one, and closes it at the
    end.

    Parameters
    ----------
    trace : xarray.DataTree or Dataset
        The posterior, as `sample` returns it; its data tell what has changed since.
    model : pymc.Model, optional
        By default that of the ``with`` block.
    var_names, sample_vars, freeze_vars
        What is returned, drawn anew and kept, as in PyMC.
    sample_dims : sequence of str
        The dimensions of the draws; the longest is split.
    random_seed : int, sequence of int or Generator, optional
    progressbar : bool
    extend_inferencedata : bool
        Whether the groups are put into the trace, and the trace is returned.
    predictions : bool
        Whether the group is called ``predictions``, as of other data than those of the posterior.
    cores : int, optional
        Ranks to fork, one thread each, by default one for each usable core. Not within a run.

    Returns
    -------
    xarray.DataTree
        With ``posterior_predictive`` and ``observed_data``, or ``predictions``, and constant data.

    Raises
    ------
    TypeError, ValueError
        If the trace has no draws or none of the model's variables, or is of another kind, or the model cannot
        be sent to the ranks.
    KeyboardInterrupt
        After ^C, when the parts that run have ended.

    See Also
    --------
    synk.extensions.pymc.sample : makes the draws.

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import sample, sample_posterior_predictive
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> draws = sample(draws=200, tune=200, chains=2, random_seed=1, progressbar=False, model=model)
    >>> new = sample_posterior_predictive(draws, model, random_seed=1, progressbar=False)
    >>> new.posterior_predictive["y"].shape
    (2, 200, 10)
    """
    options = {
        "var_names": var_names,
        "sample_vars": sample_vars,
        "freeze_vars": freeze_vars,
        "sample_dims": list(sample_dims),
        "predictions": predictions,
    }
    model = model_of(model)
    posterior = _posterior(trace)
    known = [one.name for one in [*model.free_RVs, *model.deterministics] if one.name in posterior]
    if not known:
        raise ValueError(
            f"the trace has none of the model's variables, only {', '.join(posterior) or 'nothing'}"
        )
    groups = trace.children if isinstance(trace, xarray.DataTree) else {}
    task = Task(
        Predictive,
        model,
        options,
        posterior[known],
        _longest(posterior, sample_dims),
        {name: groups[name].to_dataset() for name in WHOLE if name in groups},
    )
    seeds = get_random_generator(random_seed).integers(2**30, size=STREAMS).tolist()
    found = over_draws(task, seeds, cores, progressbar)
    if extend_inferencedata and isinstance(trace, xarray.DataTree):
        return _extended(trace, found)
    return xarray.DataTree.from_dict(found)


def compute_log_likelihood(
    idata: Any,
    *,
    var_names: Sequence[str] | None = None,
    extend_inferencedata: bool = True,
    model: Any = None,
    sample_dims: Sequence[str] = ("chain", "draw"),
    progressbar: bool = True,
    cores: int | None = None,
) -> Any:
    """Compute the log-likelihood of each observation for each draw, on all ranks, as PyMC does.

    Each rank has PyMC evaluate its part of the draws, by a function that synk compiles. Without a run it
    forks one, and closes it at the end.

    Parameters
    ----------
    idata : xarray.DataTree or Dataset
        With a posterior, or that itself.
    var_names : sequence of str, optional
        Observed variables; by default all.
    extend_inferencedata : bool
        Whether the group is put into `idata`, which is returned then.
    model : pymc.Model, optional
        By default that of the ``with`` block.
    sample_dims, progressbar, cores
        As in `sample_posterior_predictive`.

    Returns
    -------
    xarray.DataTree or Dataset
        `idata`, with the group ``log_likelihood``; or that group, as for a Dataset.

    Raises
    ------
    TypeError, ValueError
        If there are no draws, a variable is not observed, or the posterior lacks variables of the model.
    KeyboardInterrupt
        After ^C, when all draws are evaluated; at once after a second one.

    See Also
    --------
    synk.extensions.pymc.sample : makes the draws.

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import compute_log_likelihood, sample
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> draws = sample(draws=200, tune=200, chains=2, random_seed=1, progressbar=False, model=model)
    >>> draws = compute_log_likelihood(draws, model=model, progressbar=False)
    >>> draws.log_likelihood["y"].shape
    (2, 200, 10)
    """
    model = model_of(model)
    posterior = _posterior(idata)
    free = [one.name for one in model.free_RVs]
    if missing := sorted(set(free) - set(posterior)):
        raise ValueError(f"the posterior has no {', '.join(missing)}, which the model needs")
    observed = [one.name for one in model.observed_RVs]
    if unknown := sorted(set(var_names or ()) - set(observed)):
        raise ValueError(f"var_names has {', '.join(unknown)}; observed are {', '.join(observed) or 'none'}")
    options = {"var_names": var_names, "sample_dims": tuple(sample_dims)}
    task = Task(Likelihood, model, options, posterior[free], _longest(posterior, sample_dims), {})
    found = over_draws(task, None, cores, progressbar)
    if not extend_inferencedata or isinstance(idata, xarray.Dataset):
        return found["log_likelihood"]
    idata["log_likelihood"] = xarray.DataTree(found["log_likelihood"])
    return idata


def _posterior(trace: Any) -> Any:
    if isinstance(trace, xarray.Dataset):
        return trace
    if not isinstance(trace, xarray.DataTree):
        raise TypeError(f"a trace is a DataTree or a Dataset of xarray, not {type(trace).__name__}")
    return trace.children.get("posterior", trace).to_dataset()


def _longest(posterior: Any, sample_dims: Sequence[str]) -> str:
    missing = sorted(set(sample_dims) - set(posterior.sizes))
    if missing or not sample_dims:
        known = ", ".join(map(str, posterior.sizes)) or "none"
        raise ValueError(f"sample_dims={list(sample_dims)}: the posterior has the dimensions {known}")
    longest = max(sample_dims, key=posterior.sizes.__getitem__)
    if not all(posterior.sizes[name] for name in sample_dims):
        raise ValueError(f"the posterior has no draws: its sizes are {dict(posterior.sizes)}")
    return longest


def _extended(trace: Any, found: Mapping[str, Any]) -> Any:
    """Put groups into a trace, with PyMC's warning if there are such."""
    there = sorted((set(trace.children) & set(found)) - set(WHOLE))
    if there:
        warnings.warn(f"{', '.join(there)}: already in the trace, and overwritten", UserWarning, stacklevel=3)
    trace.update(xarray.DataTree.from_dict(found))
    return trace
