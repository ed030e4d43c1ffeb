"""Compile the log-density of a model and its gradient: for this process, for each rank, or for all together.

Model -> Prepared: frozen, laid out, pieces of a graph
      -> here: a PyTensor function       -> Evaluation: point -> log-density, gradient
      -> for_each_rank: `synk.function`, nothing scattered, called by each rank for itself
      -> on_all_ranks: `synk.function`, rows scattered, the sum of the ranks' log-densities
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

import synk
from synk.compile import array_mode
from synk.extensions.pymc.graph import (
    Layout,
    constants,
    frozen,
    joined,
    layout_of,
    log_density,
    of_vector,
    pieces_of,
)
from synk.extensions.pymc.rebuild import rebuilt
from synk.extensions.pymc.rows import length_of, picked_by_row, with_rows
from synk.extensions.pymc.starts import TRIES, initial_points, named
from synk.ops import addend

SHARED_BYTES = 2**16  # arrays of this size or more lie once in shared memory, not in every rank's graph
# How much the ranks' result may differ from one process's, as a fraction of its largest element; the coarsest
# dtype of a variable counts.
TOLERANCES = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-9}
OFF = "leave shard= out, and please report the model"


@dataclass
class Evaluation:
    """A callable that returns the log-density and its gradient at a point; it can be sent to the ranks.

    ``function`` returns a list: first a vector of the log-density and the gradients, then the gradients of
    the variables in ``gathered``, one array each.
    """

    function: Any
    before: Sequence[Any]  # inputs in front of the point
    after: Sequence[Any]  # inputs behind the point
    slices: Sequence[slice]  # of the variables in the gradient
    gathered: Sequence[
        int
    ] = ()  # positions of variables whose gradients have the data's rows, and are gathered

    def __call__(self, vector: Any) -> tuple[float, np.ndarray]:
        flat, *others = self._outputs(vector)
        if not self.gathered:
            return float(flat[0]), flat[1:]
        gradient, start = np.empty(self.slices[-1].stop), 1
        rows = iter(others)
        for position, place in enumerate(self.slices):
            if position in self.gathered:
                gradient[place] = next(rows).ravel()
            else:
                gradient[place] = flat[start : (start := start + place.stop - place.start)]
        return float(flat[0]), gradient

    @cached_property
    def _outputs(self) -> Callable[[Any], Sequence[Any]]:
        if not hasattr(self.function, "bound"):
            return lambda vector: self.function(*self.before, vector, *self.after)
        # On one rank the function is bound to fixed arrays: passing new ones may take longer than a gradient.
        point, run = self._bound

        def outputs(vector: Any) -> Sequence[Any]:
            point[...] = vector
            return run()

        return outputs

    @cached_property
    def _bound(self) -> tuple[np.ndarray, Any]:
        point = np.empty(self.slices[-1].stop)
        return point, self.function.bound(*self.before, point, *self.after)

    def callback(self, fallback: Callable[[np.ndarray], tuple[float, np.ndarray]]) -> Any:
        """Return this evaluation as a function in C with an ``address`` and ``data``, or None if it has none.

        ``fallback`` is the Python function that is called when the C code fails.
        """
        if self.gathered or not hasattr(self.function, "bound"):
            return None
        point, run = self._bound
        result = np.empty(1 + point.size)

        def answer() -> np.ndarray:
            result[0], result[1:] = fallback(point)
            return result

        return run.callback(point, answer)


class Prepared:
    """A model whose log-density and gradient are graphs, ready to be compiled.

    Attributes
    ----------
    model : pymc.Model
        A copy whose data and lengths are constants.
    layout : Layout
    start : callable
        Returns an initial point for a seed.
    """

    def __init__(self, model: Any, initvals: Any = None, jacobian: bool = True, jitter: bool = True):
        self.model = frozen(model)
        self.start = initial_points(self.model, named(model, initvals), jitter)
        self._jacobian = jacobian
        self.layout: Layout = layout_of(self.model, self.start(0))
        if not self.layout.size:
            raise pm.exceptions.SamplingError("the model has no free variables, or only such of size 0")
        self._values = [self.model.rvs_to_values[rv] for rv in self.model.free_RVs]
        self._pieces = self._pieces_of(None)

    def _pieces_of(self, factors: Any) -> list[Any]:
        (total,) = rebuilt([log_density(self.model, factors, self._jacobian)], picked_by_row)
        return pieces_of(total, self.model)

    def here(self) -> Evaluation:
        """Compile for this process."""
        point, pieces = of_vector(self._pieces, self.model, self.layout)
        function = pytensor.function([point], [joined(pieces)], mode=array_mode(), trust_input=True)
        return self._evaluation(function)

    def for_each_rank(self) -> Evaluation:
        """Compile for every rank to call by itself; large arrays of the model lie in shared memory."""
        point, pieces = of_vector(self._pieces, self.model, self.layout)
        large = [one for one in constants(pieces) if one.data.nbytes >= SHARED_BYTES]
        arrays = [pt.tensor(one.name, dtype=one.dtype, shape=one.type.shape) for one in large]
        pieces = rebuilt(pieces, lambda node, inputs: None, dict(zip(large, arrays, strict=True)))
        function = synk.function([], [joined(pieces)], bcast_inputs=[point, *arrays], name="log-density")
        return self._evaluation(function, after=[synk.data(one.data) for one in large])

    def on_all_ranks(self, shard: Any) -> Evaluation:
        """Compile for all ranks together, which split the rows of a dimension.

        Raises
        ------
        TypeError, ValueError
            If there is no such dimension, no data has it, or a term of the model does not split.
        SynkError
            If the ranks compute another result than one process does, at random points.
        """
        length = length_of(self.model, shard)
        split, rows = with_rows(self._pieces, length)
        point, pieces = of_vector(split, self.model, self.layout)
        if not rows:
            raise ValueError(self._refusal(shard, length, []))
        scattered = [row.variable for row in rows]
        as_written = synk.function(scattered, pieces, bcast_inputs=[point], name="log-density")
        if gathers := as_written.gathers():
            raise ValueError(self._refusal(shard, length, gathers))
        gathered = [k for k, mode in enumerate(as_written.output_modes) if mode == "gather"]
        added = [addend(piece) for k, piece in enumerate(pieces) if k not in gathered]
        outputs = [(joined(added), "sum"), *(pieces[k] for k in gathered)]
        function = synk.function(scattered, outputs, bcast_inputs=[point], name="log-density")
        data = [synk.data(row.values, name=row.variable.name) for row in rows]
        evaluation = self._evaluation(function, before=data, gathered=[k - 1 for k in gathered])
        self._check(evaluation)
        return evaluation

    def _evaluation(self, function: Any, **inputs: Any) -> Evaluation:
        return Evaluation(function, **{"before": (), "after": (), "slices": self.layout.slices(), **inputs})

    def _check(self, evaluation: Evaluation) -> None:
        """Compare an evaluation with one process, at points until all elements were finite at two of them."""
        alone, compared = self.here(), 0
        tolerance = max(TOLERANCES[dtype] for dtype in self.layout.dtypes)
        for seed in range(TRIES):
            vector = self.layout.join(self.start(seed))
            found, expected = (np.hstack(one(vector)) for one in (evaluation, alone))
            finite = np.isfinite(expected)
            if not np.array_equal(np.isfinite(found), finite):
                raise synk.SynkError(f"the ranks together are finite where one process is not, or not; {OFF}")
            largest = np.abs(expected[finite]).max(initial=0)
            error = np.abs(found[finite] - expected[finite]).max(initial=0)
            if error > tolerance * largest:
                raise synk.SynkError(
                    f"the ranks together are off by {error:.3g} of {largest:.3g} from one process; {OFF}"
                )
            compared += int(finite.all())
            if compared == 2:
                return
        if not compared:
            warnings.warn(
                "the ranks together were not compared with one process where the log-density is finite: it "
                f"is so at none of {TRIES} initial points; pass initvals= or initval=",
                synk.SynkWarning,
                stacklevel=4,
            )

    def _refusal(self, shard: Any, length: int, gathers: Sequence[str]) -> str:
        """Return an error text: which variables do not split, and why; if all do, which arrays were split."""
        reasons = []
        for factor in [*self.model.basic_RVs, *self.model.potentials]:
            pieces, rows = with_rows(self._pieces_of([factor]), length)
            scattered = [row.variable for row in rows]
            if rows:
                function = synk.function(
                    scattered, pieces, bcast_inputs=self._values, name=factor.name, on_unused_input="ignore"
                )
                reasons += [f"{factor.name!r}: {line}" for line in function.gathers()[:1]]
            elif factor in self.model.observed_RVs:
                reasons.append(f"{factor.name!r}: no array in its log-density has {length} rows")
        if not reasons:
            _, rows = with_rows(self._pieces, length)
            names = ", ".join(str(row.variable.name) for row in rows)
            reasons = [
                *dict.fromkeys(gathers),
                f"all arrays of length {length} were split, whatever they are: {names}",
            ]
        return f"the model does not split along shard={shard!r}:\n" + "\n".join(reasons)
