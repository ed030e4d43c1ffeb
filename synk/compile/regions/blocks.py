"""C text of Blockwise and of products of stacks: a loop over blocks around the text of one.

arrays with leading axes of blocks -> for each block: views of it -> the core Op's text, into its place
"""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot
from pytensor.tensor.signal.conv import Convolve1d

from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.views import View
from synk.compile.regions.walks import common_shape

Signature = tuple[
    Sequence[Sequence[str]], Sequence[Sequence[str]]
]  # names of the inputs' axes, and of the outputs'


@c_text.register(Blockwise)
def blocks(op: Blockwise, node: Apply, region: RegionWriter) -> None:
    """Write a loop, if there are several blocks."""
    ndim = op.batch_ndim(node)
    if not ndim:
        c_text(op.core_op, node, region)
        return
    core, inner = op._create_dummy_core_node(node.inputs, return_dummy_inputs=True)
    patterns = [variable.type.broadcastable[:ndim] for variable in node.inputs]
    _loop(region, node, core, inner, patterns, (op.inputs_sig, op.outputs_sig))


@c_text.register(BatchedDot)
def products(op: BatchedDot, node: Apply, region: RegionWriter) -> None:
    """Write a loop over products of matrices."""
    inner = [variable.type.clone(shape=variable.type.shape[1:])() for variable in node.inputs]
    signature = (("m", "k"), ("k", "n")), (("m", "n"),)
    _loop(region, node, Dot().make_node(*inner), inner, [(False,)] * 2, signature)


def _loop(
    region: RegionWriter,
    node: Apply,
    core: Apply,
    inner: Sequence[Variable],
    patterns: Sequence[Sequence[bool]],
    signature: Signature,
) -> None:
    """Add a loop of a core node, whose inputs are blocks of the node's: one for all along broadcast axes."""
    ndim = len(patterns[0])
    graph = FunctionGraph(inner, core.outputs, clone=False)
    views, shape = [region.view(variable) for variable in node.inputs], region.let_array(["0"] * ndim)
    region.demand(common_shape(views, patterns, shape))
    batch = [f"{shape}[{axis}]" for axis in range(ndim)]
    outputs = [region.new(out, [*batch, *lengths]) for out, lengths in _lengths(signature, node, views, ndim)]
    count = region.let("long", f"elements({ndim}, {shape})")
    with region.block(count, graph):
        index = _index(region, batch)
        for variable, view, pattern in zip(inner, views, patterns, strict=True):
            steps = ["0" if fixed else at for at, fixed in zip(index, pattern, strict=True)]
            region.bind_part(variable, view, *steps)
        places = [region.let_rest(view, *index) for view in outputs]
        for variable, place in zip(core.outputs, places, strict=True):
            region.destine(variable, place)
        region.write_nodes(graph.toposort())
        for variable, place in zip(core.outputs, places, strict=True):
            region.store(variable, place)


def _lengths(signature: Signature, node: Apply, views: Sequence[View], ndim: int):
    """Yield each output with the lengths of its blocks: known, or as axes of inputs are."""
    named = {
        name: length
        for view, names in zip(views, signature[0], strict=True)
        for name, length in zip(names, view.shape[ndim:], strict=True)
    }
    for out, names in zip(node.outputs, signature[1], strict=True):
        static = out.type.shape[ndim:]
        lengths = [named.get(n) if s is None else str(s) for n, s in zip(names, static, strict=True)]
        if None in lengths:
            lengths = [_convolved(node, views)]
        yield out, lengths


def _convolved(node: Apply, views: Sequence[View]) -> str:
    """Return the length of convolutions; NoText for others, whose lengths only the first one tells."""
    core, full = getattr(node.op, "core_op", None), node.inputs[-1]
    if not isinstance(core, Convolve1d) or not isinstance(full, Constant):
        raise NoText("blocks of a shape that only the first one tells")
    n, k = (view.shape[-1] for view in views[:2])
    return f"{n} + {k} - 1" if full.data.all() else f"({n} < {k} ? {k} - {n} : {n} - {k}) + 1"


def _index(region: RegionWriter, batch: Sequence[str]) -> list[str]:
    """Return the place of block ``i`` along each axis of blocks."""
    found, rest = [], "i"
    for length in reversed(batch[1:]):
        found.append(region.let("long", f"{rest} % {length}"))
        rest = region.let("long", f"{rest} / {length}")
    return [rest, *reversed(found)]
