"""Draw from the posterior of a PyMC model, with chains or rows on the ranks.

sample -> Prepared -> an Evaluation, chains on each rank or here -> Record, until done -> tree
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import nutpie
import pymc as pm
from pymc.progress_bar import NutpieProgressBarManager
from pymc.stats.convergence import log_warnings, run_convergence_checks, warn_divergences
from pymc.util import get_random_generator

import synk
from synk.extensions.fit.signals import StoppedBySignals
from synk.extensions.pymc.chains import RankChains, Report, Start
from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.record import Record
from synk.extensions.pymc.results import Expansion, tree
from synk.extensions.pymc.runs import Stop, model_of, run_of
from synk.extensions.pymc.starts import StartError, points_of, start_of
from synk.values.checks import checked_count

POLL_SECONDS = 0.2  # at most, between two calls for the chains' reports
POLL_SHARE = 0.1  # of the time so far: at most, between two such calls
NOT_IN_NUTS = {"draws", "tune", "target_accept", "chains", "cores", "seed", "sampler", "save_warmup"}


def sample(
    draws: int = 1000,
    *,
    tune: int | None = None,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    target_accept: float | None = None,
    var_names: Sequence[str] | None = None,
    shard: str | bool | None = None,
    progressbar: Any = True,
    initvals: Mapping[str, Any] | None = None,
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    nuts: Mapping[str, Any] | None = None,
    model: Any = None,
) -> Any:
    """Draw from the posterior of a model by NUTS, on all ranks; returns what `pm.sample` returns.

    Without a run it forks one, and closes it at the end. The sampler is nutpie's. The same seed gives the
    same draws whatever the number of ranks, as long as each computes with as many threads.

    ^C ends sampling and returns what was drawn; a second one raises KeyboardInterrupt. If a rank dies, a
    warning names it, and what the other chains had drawn until then is returned.

    Parameters
    ----------
    draws, tune : int
        Of each chain, kept and for adaptation; by default nutpie's number of tuning steps, and at least one.
    chains : int, optional
        By default the number of ranks, and at least 2.
    cores : int, optional
        Ranks to fork, one thread each; by default one for each usable core, and without ``shard`` at most 4,
        as in PyMC, and at most one for each chain. Not within a run.
    random_seed : int, sequence of int or Generator, optional
        As in `pm.sample`; each chain has a stream of its own.
    target_accept : float, optional
        The acceptance rate to which step sizes adapt.
    var_names : list of str, optional
        Variables and deterministics to return; by default all.
    shard : str or True, optional
        A dimension of the model, as its ``coords`` name it: data with this dimension are split over the
        ranks, and all ranks evaluate the log-density of one chain together. True splits the longest axis of
        the observed data. By default each rank runs chains of its own.
    progressbar : bool or str
        As in `pm.sample`.
    initvals : dict, optional
        Initial values, as in `pm.sample`, of all chains, by variable or name.
    discard_tuned_samples : bool
        Whether the warm-up is left out of what is returned.
    compute_convergence_checks : bool
        Whether divergences and bad diagnostics are reported, as PyMC does.
    nuts : dict, optional
        Further settings of nutpie's sampler, such as ``max_treedepth``.
    model : pymc.Model, optional
        By default that of the ``with`` block.

    Returns
    -------
    xarray.DataTree
        With posterior, sample_stats, observed_data and constant_data; chains keep their numbers.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        If an argument is wrong, or the model has no gradient, or does not split along ``shard``.
    pymc.exceptions.SamplingError
        If the log-density is not finite where a chain begins, with its terms at such a point; or if the model
        has no free variables, or no chain has drawn anything.

    See Also
    --------
    synk.extensions.pymc.sample_posterior_predictive : draws new observations.
    pymc.sample : takes the same arguments.

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import sample
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> draws = sample(draws=200, tune=200, chains=2, random_seed=1, progressbar=False, model=model)
    >>> draws.posterior["mu"].shape
    (2, 200)
    >>> bool(abs(draws.posterior["mu"].mean() - 4.5) < 0.2)
    True
    """
    model = model_of(model, draws)
    _check_numbers(1, draws=draws, chains=chains, cores=cores)
    _check_numbers(0, tune=tune)
    settings = _settings(draws, tune, target_accept, nuts or {})
    prepared = Prepared(model, initvals)
    stop = Stop(begun=False)
    with StoppedBySignals(stop):
        with run_of(cores, chains, together=bool(shard)):
            chains = _checked_chains(chains, shard)
            starts = _starts(prepared, chains, random_seed)
            expansion = Expansion(prepared, var_names, starts[0].seed)
            record = Record(chains, prepared.layout.size)
            with closing(_chains(prepared, shard, starts, settings)) as poll:
                expansion.check()  # now, as its C was compiled together with that of the log-density
                began, stop.begun = time.perf_counter(), True
                with (
                    _display(chains, settings["draws"], progressbar) as show,
                    _warning_of_lost_rank(record),
                    _start_error_with_terms(prepared, starts),
                ):
                    _follow(poll, record, stop, show)
                seconds = time.perf_counter() - began
        drawn, warmup = record.with_warmup()
        if not drawn.points.shape[1] and (discard_tuned_samples or not warmup.points.shape[1]):
            raise pm.exceptions.SamplingError("sampling ended before any chain had drawn after its warm-up")
        attributes = {
            "inference_library": "nutpie",
            "inference_library_version": nutpie.__version__,
            "sampling_time": seconds,
            "tuning_steps": warmup.points.shape[1],
        }
        what = drawn, None if discard_tuned_samples else warmup, attributes
        try:
            found = tree(model, expansion, *what)
        except Exception as error:  # of a deterministic, at some draw
            found = tree(model, expansion.without_deterministics(), *what)
            warnings.warn(
                f"deterministics are left out, as one raised: {error!r}", synk.SynkWarning, stacklevel=2
            )
        if compute_convergence_checks:
            _check_convergence(found, model)
    return found


def _follow(poll: Here | synk.OnRanks[Any], record: Record, stop: Stop, show: Callable[[Any], None]) -> None:
    """Ask the chains how far they are, until all are done or ^C stops them."""
    began = time.monotonic()
    while not record.is_done():
        stopped = stop.stopped
        for reports in poll(record.known(), stopped):
            record.add(reports)
        show(record.progress)
        if stopped:
            return
        time.sleep(min(POLL_SECONDS, POLL_SHARE * (time.monotonic() - began)))


def _check_convergence(found: Any, model: Any) -> None:
    """Log PyMC's warnings about divergences and convergence; only warn if these checks raise."""
    free = {rv.name for rv in model.free_RVs}
    try:
        if free.intersection(found.posterior.data_vars):
            log_warnings(run_convergence_checks(found, model))
        else:  # PyMC looks at no others
            log_warnings(warn_divergences(found))
    except Exception as error:
        warnings.warn(f"convergence was not checked: {error!r}", synk.SynkWarning, stacklevel=3)


class Here:
    """Chains of this process alone, with the interface of `synk.OnRanks`."""

    def __init__(self, chains: RankChains):
        self._chains = chains
        self.close = chains.close

    def __call__(self, known: Mapping[int, int], stop: bool) -> list[list[Report]]:
        return [self._chains(known, stop)]


def _chains(
    prepared: Prepared, shard: Any, starts: Sequence[Start], settings: Mapping[str, Any]
) -> Here | synk.OnRanks[Any]:
    """Return a callable that runs the chains: here if the ranks evaluate together, else on the ranks."""
    if shard:
        return Here(RankChains(0, prepared.on_all_ranks(shard), [starts], settings))
    n_ranks = synk.n_ranks()
    shares = [list(starts[rank::n_ranks]) for rank in range(n_ranks)]
    return synk.on_ranks(RankChains, prepared.for_each_rank(), shares, settings)


def _starts(prepared: Prepared, chains: int, random_seed: Any) -> list[Start]:
    """Return a seed and initial points for each chain, which do not depend on the ranks."""
    made = []
    for chain, generator in enumerate(get_random_generator(random_seed).spawn(chains)):
        seed = int(generator.integers(2**30))
        made.append(Start(chain, seed, points_of(prepared, generator)))
    return made


@contextmanager
def _start_error_with_terms(prepared: Prepared, starts: Sequence[Start]) -> Iterator[None]:
    """Replace a rank's StartError by PyMC's error, which lists the terms of the log-density at the point."""
    try:
        yield
    except StartError:
        alone = prepared.here()
        for start in starts:
            start_of(prepared, alone, start.points)
        raise


def _checked_chains(chains: int | None, shard: Any) -> int:
    n_ranks = synk.n_ranks()
    if chains is None:
        return 4 if shard else max(2, n_ranks)
    if not shard and chains < n_ranks:
        raise ValueError(
            f"chains={chains} would leave {n_ranks - chains} of {n_ranks} ranks without work: pass "
            f"chains={n_ranks} or more, or shard= to have all ranks evaluate one chain"
        )
    return chains


def _check_numbers(least: int, **numbers: Any) -> None:
    for name, number in numbers.items():
        if number is not None:
            checked_count(name, number, least)


def _settings(draws: int, tune: int | None, target_accept: Any, nuts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of nutpie's sampler; raise TypeError for those that `nuts` must not have."""
    if refused := sorted(name for name in nuts if name in NOT_IN_NUTS or name.startswith("store_")):
        raise TypeError(f"nuts has {', '.join(refused)}: pass that to sample by its name, if sample has it")
    tune = 1 if tune == 0 else tune  # nutpie has at least one step, as in PyMC
    settings = {"draws": draws, "tune": tune, "target_accept": target_accept, **nuts}
    named = {("maxdepth" if name == "max_treedepth" else name): value for name, value in settings.items()}
    return {name: value for name, value in named.items() if value is not None}


@contextmanager
def _display(chains: int, draws: int, progressbar: Any) -> Iterator[Callable[[Any], None]]:
    """Show PyMC's progress bars; yield the function that updates them."""
    if not progressbar:
        yield lambda progress: None
        return
    with NutpieProgressBarManager(chains=chains, draws=draws, progressbar=progressbar) as manager:
        yield manager.update


@contextmanager
def _warning_of_lost_rank(record: Record) -> Iterator[None]:
    """Turn the error of a rank that died into a warning: sampling then ends with the draws so far."""
    try:
        yield
    except synk.WorkerDied as error:
        drawn = ", ".join(f"{count} of chain {chain}" for chain, count in record.known().items()) or "none"
        warnings.warn(
            f"{error}\nSampling has ended early, and returns the draws until then; with the warm-up, {drawn}."
            " A run of yours goes on after synk.restart().",
            synk.SynkWarning,
            stacklevel=5,
        )
