"""Decide which nodes write their results directly into the array of an output.

The value that updates a shared variable belongs in the array that the variable already has: then its
address is stable, views of it stay valid, and no second array of its size exists. This pass finds the
nodes that can write there from the start. Where the value is a join of pieces, as a flat gradient is,
each piece is written at its place in the array of the join:

    ProgramPlan: order, outputs, updates, aliases -> find_destinations
        -> Slot of each node that writes, JoinLayout of each join

A node writes to a slot only if the layout is known when the graph is compiled, nothing reads the old
value any more, and nothing overwrites the new one. Every other update is copied into place at the end.

Pure: graphs in, decisions out; ``buffers`` holds what programs call to carry them out.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate, pairwise
from math import prod

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import Join
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.type import DenseTensorType, TensorType

from synk.compile.compat import join_pieces
from synk.compile.programs.passes.decisions import Buffer, Destinations, JoinLayout, ProgramPlan, Slot

REGROUPS = (Reshape, JoinDims, SplitDims)


def find_destinations(plan: ProgramPlan) -> Destinations:
    """Decide which nodes write into the array of an output, and which outputs are copied there at the end."""
    inputs, outputs, aliases = plan.fgraph.inputs, plan.fgraph.outputs, plan.aliases
    update_targets = {
        k: inputs[i] for k, i in plan.updates.items() if isinstance(outputs[k].type, DenseTensorType)
    }
    found = Destinations({}, {}, update_targets, aliases.sharing(outputs, update_targets))
    apart = plan.placed.on_host  # made elsewhere than the buffers are
    returned = {aliases.root(output) for output in outputs}
    # Copied when all nodes have run: until then it must stay as it is.
    kept = {aliases.root(outputs[k]) for k in found.copied}
    for k, output in enumerate(outputs):
        in_place = output in aliases.parents or output in aliases.overwritten
        if in_place or output in apart or not _known(output):
            continue  # computed in place already, or a view, or elsewhere, or of unknown size
        target = update_targets.get(k)
        if target in kept or target in apart:
            target = None
        claim = _Claim(plan, found, returned, output, target)
        if isinstance(output.owner.op, Join):
            claim.join()
        else:
            claim.whole()
    return found


class _Claim:
    """A search for nodes that can write one output directly into its array."""

    def __init__(
        self,
        plan: ProgramPlan,
        found: Destinations,
        returned: Collection[Variable],
        output: Variable,
        target: Variable | None,
    ):
        self._plan, self._found, self._aliases = plan, found, plan.aliases
        self._returned, self._output, self._target = returned, output, target

    def whole(self) -> None:
        """Let the node that computes the output write into the target's array, if it can."""
        writer = self._writer(self._output)
        if writer is not None and self._target is not None and self._aliases.free(self._target, writer[0]):
            node, shape = writer
            self._found.slots[node] = Slot(Buffer(self._output, self._target), 0, prod(shape), shape)

    def join(self) -> None:
        """Let the nodes that compute the pieces of a join write each at its place in one buffer.

        The buffer is the target if nothing reads the target any more when the first of them runs, else a new
        array.
        """
        node = self._output.owner
        if node in self._found.slots:
            return  # it is a piece of another join
        spans = _spans(node)
        writers = {start: self._writer(piece) for piece, start, _ in spans}
        first = min([node, *(w[0] for w in writers.values() if w)], key=self._aliases.position.__getitem__)
        free = self._target is not None and self._aliases.free(self._target, first)
        buffer = Buffer(self._output, self._target if free else None)
        pieces = []
        for _, start, stop in spans:
            writer = writers[start]
            # The same piece may come twice; it is written to one place and copied to the other.
            if writer is not None and writer[0] not in self._found.slots:
                self._found.slots[writer[0]] = Slot(buffer, start, stop, writer[1])
                pieces.append((start, stop, True))
            else:
                pieces.append((start, stop, False))
        if spans:
            self._found.joins[node] = JoinLayout(buffer, tuple(pieces))

    def _writer(self, piece: Variable) -> tuple[Apply, tuple[int, ...]] | None:
        """Return the node that computes ``piece`` and its shape, or None if it cannot write elsewhere."""
        source, shape = _before_regrouping(piece)
        node = source.owner
        lengths = tuple(length for length in shape if length is not None)
        if node is None or len(node.outputs) > 1 or not shape or len(lengths) < len(shape):
            return None
        fits = isinstance(source.type, TensorType) and source.type.dtype == self._output.type.dtype
        return (node, lengths) if fits and self._lives(source) and self._accepts(node) else None

    def _accepts(self, node: Apply) -> bool:
        return node.outputs[0] not in self._plan.stored and self._plan.accepts(node)

    def _lives(self, source: Variable) -> bool:
        """Tell whether ``source`` may be written elsewhere: nothing overwrites it, and it has no place."""
        # A piece that is an output too must not lie in the join: callers and shared variables own theirs.
        piece = isinstance(self._output.owner.op, Join)
        returned = piece and self._aliases.root(source) in self._returned
        placed = source.owner in self._found.slots or source.owner in self._found.joins
        return source not in self._aliases.overwritten and not returned and not placed


def _before_regrouping(variable: Variable) -> tuple[Variable, tuple[int | None, ...]]:
    """Return the variable from which checks and regroupings of axes make this one, and its shape."""
    shape = getattr(variable.type, "shape", ())
    while variable.owner is not None and isinstance(variable.owner.op, (SpecifyShape, *REGROUPS)):
        same = isinstance(variable.owner.op, SpecifyShape)
        variable = variable.owner.inputs[0]
        # A check passes its shape on to what it checks; a regrouping has another.
        shape = (
            tuple(a if b is None else b for a, b in zip(shape, variable.type.shape, strict=True))
            if same
            else variable.type.shape
        )
    return variable, shape


def _spans(node: Apply) -> list[tuple[Variable, int, int]]:
    """Return a join's pieces, each with the first element of its place and the end; [] if one is unknown."""
    axis, pieces = join_pieces(node)
    if axis != 0 or not all(map(_known, pieces)):
        return []
    edges = accumulate([prod(piece.type.shape) for piece in pieces], initial=0)
    return [(piece, *edge) for piece, edge in zip(pieces, pairwise(edges), strict=True)]


def _known(variable: Variable) -> bool:
    """Tell whether a variable is computed, and of a size that is known."""
    return variable.owner is not None and None not in getattr(variable.type, "shape", (None,))
