"""C text of Blockwise and of products of stacks of matrices: a loop over blocks around the core Op's text.

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
from synk.compile.regions.lines import Text
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.views import View
from synk.compile.regions.walks import common_shape

Signature = tuple[
    Sequence[Sequence[str]], Sequence[Sequence[str]]
]  # names of the inputs' axes, and of the outputs'


@c_text.register(Blockwise)
def blocks(op: Blockwise, node: Apply, region: RegionWriter) -> None:
    """Write a loop that runs the core Op on each block; without axes of blocks, write the core Op alone."""
    ndim = op.batch_ndim(node)
    if not ndim:
        c_text(op.core_op, node, region)
        return
    core, inner = op._create_dummy_core_node(node.inputs, return_dummy_inputs=True)
    patterns = [variable.type.broadcastable[:ndim] for variable in node.inputs]
    _loop(region, node, core, inner, patterns, (op.inputs_sig, op.outputs_sig))


@c_text.register(BatchedDot)
def products(op: BatchedDot, node: Apply, region: RegionWriter) -> None:
    """Write a loop that multiplies two matrices in each step."""
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
    """Add a loop that runs a core node on each block of the node's inputs.

    ``inner`` are the core node's inputs. ``patterns`` tell, for each input and axis of blocks, whether the
    input's length there is 1, so that all steps read the same block.
    """
    ndim = len(patterns[0])
    graph = FunctionGraph(inner, core.outputs, clone=False)
    text, variables = region.text, region.variables
    views, shape = [variables.view(variable) for variable in node.inputs], text.declare_array(["0"] * ndim)
    text.demand(common_shape(views, patterns, shape))
    batch = [f"{shape}[{axis}]" for axis in range(ndim)]
    outputs = [
        variables.new(out, [*batch, *lengths]) for out, lengths in _lengths(signature, node, views, ndim)
    ]
    count = text.let("long", f"elements({ndim}, {shape})")
    with region.block(count, graph):
        index = _index(text, batch)
        for variable, view, pattern in zip(inner, views, patterns, strict=True):
            steps = ["0" if fixed else at for at, fixed in zip(index, pattern, strict=True)]
            variables.bind_part(variable, view, *steps)
        places = [text.declare_subview(view, *index) for view in outputs]
        for variable, place in zip(core.outputs, places, strict=True):
            variables.destine(variable, place)
        region.write_nodes(graph.toposort())
        for variable, place in zip(core.outputs, places, strict=True):
            variables.store(variable, place)


def _lengths(signature: Signature, node: Apply, views: Sequence[View], ndim: int):
    """Yield each output with the lengths of its blocks: static ones, or those of inputs by name of axis."""
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
    """Return the length of a convolution's blocks.

    Raises NoText for any other Op, whose lengths are known only when the first block is computed.
    """
    core, full = getattr(node.op, "core_op", None), node.inputs[-1]
    if not isinstance(core, Convolve1d) or not isinstance(full, Constant):
        raise NoText("blocks of a shape that only the first one tells")
    n, k = (view.shape[-1] for view in views[:2])
    return f"{n} + {k} - 1" if full.data.all() else f"({n} < {k} ? {k} - {n} : {n} - {k}) + 1"


def _index(text: Text, batch: Sequence[str]) -> list[str]:
    """Return the index along each axis of blocks of block number ``i``."""
    found, rest = [], "i"
    for length in reversed(batch[1:]):
        found.append(text.let("long", f"{rest} % {length}"))
        rest = text.let("long", f"{rest} / {length}")
    return [rest, *reversed(found)]
