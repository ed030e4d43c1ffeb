"""Candidates of one part of a GPU's figures: started together, held to the same losses, timed in turn.

    {name: Crew} -> Race.run -> a table, written after every round -> FILE

A candidate that breaks down, or is not ready in time, is left out and named; the others go on.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import markdown_tables
import numpy as np
from lines import Crew

from synk.tools.bench import pairs

AGREE = 6  # steps, whose losses are compared
MOST_ROUNDS = 40
RESERVE = 15.0, 0.25  # seconds, or share of all, for the rounds: who is not ready before is left out


@dataclass
class Race:
    """The candidates of one part, and their times.

    Parameters
    ----------
    title, note : str
    steps : int
        In a block, which is what is timed.
    amount : float
        Of one step, in units of ``1 / scale``.
    times_a_step : int
        How often a step does what is measured.
    tolerance : float, optional
        How far losses may be from those of the first candidate, relative.
    rival : str
        The candidate that is to take ``times`` as long as the best of ours; "" if nothing is asked.
    ours : str
        How the names of our candidates begin.
    """

    options: argparse.Namespace
    title: str
    note: str
    steps: int
    amount: float
    unit: str = "images/s"
    scale: float = 1.0
    times_a_step: int = 1
    tolerance: float | None = None
    rival: str = ""
    times: float = 1.0
    ours: str = "synk"
    losses: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def run(self, candidates: Mapping[str, Crew]) -> dict:
        """Measure until the time of ``options.end`` is over; return the table, which has been written too."""
        with contextlib.ExitStack() as running:
            crews = {name: running.enter_context(crew) for name, crew in candidates.items()}
            for name in list(crews):
                if not self._begins(name, crews[name]):
                    del crews[name]
            found = self._rounds(crews)
            self.options.to.write_text(json.dumps(found))  # before crews end, which may take long
        return found

    def _begins(self, name: str, crew: Crew) -> bool:
        """Tell whether a candidate is ready in time, and makes its first steps."""
        until = self.options.end - min(RESERVE[0], RESERVE[1] * self.options.seconds)
        try:
            seconds = crew.ready(until)
            self.losses[name] = crew.run(AGREE, until).losses
        except SystemExit as error:
            self.missing[name] = str(error)
            print(f"without {name}: {error}", flush=True)
            crew.kill()
            return False
        print(f"{name}: ready after {seconds:.1f} s, losses {self.losses[name]}", flush=True)
        return True

    def _rounds(self, crews: Mapping[str, Crew]) -> dict:
        """Let the crews make their steps in turn; return the table of all rounds that were finished."""
        rounds: list[dict[str, float]] = []
        if not crews:
            return self.table(rounds)
        current: dict[str, float] = {}

        def begin(number: int) -> None:
            nonlocal current
            if number > 0:
                rounds.append(current)
                self.options.to.write_text(json.dumps(self.table(rounds)))
            current = {}

        def block(name: str) -> float:
            current[name] = crews[name].run(self.steps).seconds
            return current[name]

        left = max(5.0, self.options.end - time.monotonic() - 5)
        n_rounds = 3 if self.options.quick else MOST_ROUNDS
        try:
            names = {name: lambda name=name: block(name) for name in crews}
            pairs.compare(names, n_rounds, 1, timer=lambda block: block(), seconds=left, on_round=begin)
            rounds.append(current)
        except SystemExit as error:  # a candidate is dead; rounds before that count
            self.missing["in a round"] = str(error)
        return self.table(rounds)

    def table(self, rounds: Sequence[Mapping[str, float]]) -> dict:
        """Return the times of a step, what that makes in a second, ratios, and whether losses agree."""
        told = {"title": self.title, "note": self._said(len(rounds))}
        if not rounds:
            return told | {"error": f"nothing was measured: {self._reasons()}"}
        comparison = pairs.Comparison({name: [each[name] for each in rounds] for name in self.losses})
        of_ours = [name for name in comparison.seconds if name.startswith(self.ours)]
        best = min(of_ours or comparison.seconds, key=comparison.median)
        rows = []
        for name in comparison.seconds:
            median = comparison.median(name) / self.steps / self.times_a_step
            speed = f"{self.scale * self.amount / median:,.4g}"
            ratio = markdown_tables.in_words(comparison.ratio(name, to=best))
            rows.append([name, pairs.in_units(median), speed, ratio, *self._agrees(name)])
        columns = ["candidate", "a step", self.unit, f"× time of {best} (quartiles)"]
        columns += ["losses"] if self.tolerance else []
        told |= {"columns": columns, "rows": rows} | self._verdict(comparison, best)
        return told if of_ours else told | {"error": self._reasons()}

    def _verdict(self, comparison: pairs.Comparison, best: str) -> dict:
        """Return the measurement, and whether it meets the target."""
        if not best.startswith(self.ours):
            return {"measured": "not measured", "met": "no"}
        if not self.rival:
            median = comparison.median(best) / self.steps / self.times_a_step
            speed = f"{self.scale * self.amount / median:,.4g} {self.unit}"
            return {"measured": f"{pairs.in_units(median)}, {speed}: {best}", "met": ""}
        if self.rival not in comparison.seconds:
            return {"measured": f"no {self.rival} to compare with", "met": "no"}
        ratio = comparison.ratio(self.rival, to=best)
        agree = all(self.off(name) < (self.tolerance or np.inf) for name in (best, self.rival))
        met = "yes" if agree and ratio.median >= self.times else "no" if agree else "no: losses differ"
        return {"measured": f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), {best}", "met": met}

    def off(self, name: str) -> float:
        """Return how far the losses of a candidate are from those of the first one, relative."""
        first = next(iter(self.losses))
        error = np.abs(np.subtract(self.losses[name], self.losses[first]) / self.losses[first]).max()
        return float(np.inf if np.isnan(error) else error)

    def _agrees(self, name: str) -> list[str]:
        """Return a cell, if losses are compared: the last one, and how far all are from the first one's."""
        if self.tolerance is None:
            return []
        last, off = f"{self.losses[name][-1]:.4f}", self.off(name)
        if name == next(iter(self.losses)):
            return [last]
        return [f"{last}, {off:.0e} off{'' if off < self.tolerance else ': differ'}"]

    def _said(self, n_rounds: int) -> str:
        note = f"{self.note} {n_rounds} rounds."
        if self.tolerance:
            note += f" Losses: of step {AGREE}; {self.tolerance:g} may lie between them, relative."
        return f"{note} Left out: {self._reasons()}." if self.missing else note

    def _reasons(self) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self.missing.items())
