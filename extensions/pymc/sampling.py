"""Draw from the posterior of a PyMC model, with chains or rows on the ranks.

sample -> Prepared -> an Evaluation, chains on each rank or here -> Record, until done -> tree
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import nutpie
import pymc as pm
from pymc.progress_bar import NutpieProgressBarManager
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import get_random_generator

import synk
from synk.compile import array_mode
from synk.extensions.fit.signals import StoppedBySignals
from synk.extensions.pymc.chains import RankChains, Report, Start, StartError
from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.record import Record
from synk.extensions.pymc.results import Expansion, tree
from synk.extensions.pymc.runs import run_of

TRIES = 10  # of initial points for a chain
POLL_SECONDS = 0.2  # between looks at the chains, and
POLL_SHARE = 0.1  # at most this part of the time so far


def sample(
    model: Any = None,
    *,
    draws: int = 1000,
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
) -> Any:
    """Draw from the posterior of a model by NUTS, on all ranks; returns what `pm.sample` returns.

    Without a run it forks one, and closes it at the end. The sampler is nutpie's. The same seed gives the
    same draws whatever the number of ranks, as long as each computes with as many threads.

    ^C ends sampling and returns what was drawn; a second one raises KeyboardInterrupt. If a rank dies, a
    warning names it, and what the other chains had drawn until then is returned.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    draws, tune : int
        Of each chain, kept and for adaptation; by default nutpie's number of tuning steps.
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
        Initial values, as in `pm.sample`, of all chains.
    discard_tuned_samples : bool
        Whether the warm-up is left out of what is returned.
    compute_convergence_checks : bool
        Whether divergences and bad diagnostics are reported, as PyMC does.
    nuts : dict, optional
        Further settings of nutpie's sampler, such as ``max_treedepth``.

    Returns
    -------
    xarray.DataTree
        With posterior, sample_stats, observed_data and constant_data; chains keep their numbers.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        If an argument is wrong, or the model has no gradient, or does not split along ``shard``.
    pymc.exceptions.SamplingError
        If the log-density is not finite where a chain begins; it lists the terms.
    """
    model = pm.modelcontext(model)
    _check_numbers(draws=draws, chains=chains, cores=cores)
    settings = {"draws": draws, "tune": tune, "target_accept": target_accept, **(nuts or {})}
    settings = {("maxdepth" if k == "max_treedepth" else k): v for k, v in settings.items() if v is not None}
    prepared = Prepared(model, initvals)
    expansion = Expansion(prepared.model, prepared.layout, var_names)
    with run_of(cores, chains, together=bool(shard)):
        chains = _checked_chains(chains, shard)
        starts = _starts(prepared, chains, random_seed)
        record = Record(chains, prepared.layout.size)
        try:
            poll = _chains_here_or_there(prepared, shard, starts, settings)
            began = time.perf_counter()  # what is compiled is compiled
            with (
                closing(poll),
                _display(chains, draws, progressbar) as show,
                _returning_what_is_drawn(record),
            ):
                _follow(poll, record, show)
        except StartError as error:
            raise _sampling_error(prepared, error) from None
        attributes = {
            "inference_library": "nutpie",
            "inference_library_version": nutpie.__version__,
            "sampling_time": time.perf_counter() - began,
            "tuning_steps": record.n_tune(draws),
        }
    drawn = record.kept(tuning=False)
    if not drawn.chains:
        raise pm.exceptions.SamplingError("sampling ended before any chain had drawn after its warm-up")
    warmup = None if discard_tuned_samples else record.kept(tuning=True)
    found = tree(model, expansion, drawn, warmup, attributes)
    if compute_convergence_checks:
        log_warnings(run_convergence_checks(found, model))
    return found


def _follow(poll: Here | synk.OnRanks, record: Record, show: Callable[[Any], None]) -> None:
    """Ask the chains how far they are, until all are done or ^C stops them."""
    began = time.monotonic()
    with StoppedBySignals(record):
        while not record.is_done():
            for reports in poll(record.known(), record.interrupted is not None):
                record.add(reports)
            show(record.progress)
            if record.interrupted is not None:
                return
            time.sleep(min(POLL_SECONDS, POLL_SHARE * (time.monotonic() - began)))


class Here:
    """Chains of this process alone, asked like those on all ranks."""

    def __init__(self, chains: RankChains):
        self._chains = chains
        self.close = chains.close

    def __call__(self, known: Mapping[int, int], stop: bool) -> list[list[Report]]:
        return [self._chains(known, stop)]


def _chains_here_or_there(
    prepared: Prepared, shard: Any, starts: Sequence[Start], settings: Mapping[str, Any]
) -> Here | synk.OnRanks:
    """Begin the chains: here, if the ranks evaluate together, else on each rank its share of them."""
    if shard:
        return Here(RankChains(0, prepared.on_all_ranks(shard), [starts], settings))
    n_ranks = synk.n_ranks()
    shares = [list(starts[rank::n_ranks]) for rank in range(n_ranks)]
    return synk.on_ranks(RankChains, prepared.for_each_rank(), shares, settings)


def _starts(prepared: Prepared, chains: int, random_seed: Any) -> list[Start]:
    """Return a seed and initial points for each chain, which do not depend on the ranks."""
    made = []
    for chain, generator in enumerate(get_random_generator(random_seed).spawn(chains)):
        seed, *tries = generator.integers(2**30, size=1 + TRIES).tolist()
        points = np.array([prepared.layout.join(prepared.start(one)) for one in tries])
        made.append(Start(chain, seed, points))
    return made


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


def _check_numbers(**numbers: Any) -> None:
    for name, number in numbers.items():
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise TypeError(f"{name}={number!r} is not an integer")
        if number < 1:
            raise ValueError(f"{name}={number} is less than 1")


@contextmanager
def _display(chains: int, draws: int, progressbar: Any) -> Iterator[Callable[[Any], None]]:
    """Show how far all chains are, as PyMC does."""
    if not progressbar:
        yield lambda progress: None
        return
    with NutpieProgressBarManager(chains=chains, draws=draws, progressbar=progressbar) as manager:
        yield manager.update


def _sampling_error(prepared: Prepared, error: StartError) -> Exception:
    """Return PyMC's error, with the terms of the log-density where a chain was to begin."""
    point = prepared.start(0)
    terms = prepared.model.point_logps(point, mode=array_mode())
    listed = "\n".join(f"  {name}: {value}" for name, value in terms.items())
    return pm.exceptions.SamplingError(f"{error}; its terms at one such point:\n{listed}")


@contextmanager
def _returning_what_is_drawn(record: Record) -> Iterator[None]:
    """Warn of a rank that has died, which ends sampling early."""
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
