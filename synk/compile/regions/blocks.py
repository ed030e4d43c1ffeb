"""C text of Blockwise and of products of stacks: a loop over blocks around the text of one.

arrays with leading axes of blocks -> for each block: views of it -> the core Op's text, into its place
"""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from synk.compile.elementwise.body import Operand
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copy, mask_of
from synk.compile.regions.writer import RegionWriter, type_of

Signature = tuple[
    Sequence[Sequence[str]], Sequence[Sequence[str]]
]  # names of the inputs' axes, and of the outputs'


@c_text.register(Blockwise)
def blocks(op: Blockwise, node: Apply, region: RegionWriter) -> None:
    """A loop, if there are several blocks."""
    ndim = op.batch_ndim(node)
    if not ndim:
        c_text(op.core_op, node, region)
        return
    core, inner = op._create_dummy_core_node(node.inputs, return_dummy_inputs=True)
    patterns = [variable.type.broadcastable[:ndim] for variable in node.inputs]
    _loop(region, node, core, inner, patterns, (op.inputs_sig, op.outputs_sig))


@c_text.register(BatchedDot)
def products(op: BatchedDot, node: Apply, region: RegionWriter) -> None:
    """A loop over products of matrices."""
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
    views = [region.view(variable) for variable in node.inputs]
    shape = region.let_array(ndim)
    listed, fixed = ", ".join(f"&{view}" for view in views), ", ".join(str(mask_of(p)) for p in patterns)
    arrays, masks = f"(const View *const[]){{{listed}}}", f"(const long[]){{{fixed}}}"
    region.demand(f"common_shape({len(views)}, {ndim}, {arrays}, {masks}, {shape})")
    batch = [f"{shape}[{axis}]" for axis in range(ndim)]
    outputs = [region.new(out, [*batch, *lengths]) for out, lengths in _lengths(signature, node, views, ndim)]
    count = region.let("long", f"elements({ndim}, {shape})")
    region.line(f"Watch {count}w = {{1, 1, milliseconds()}};")
    with region.block(f"for (long i = 0; i < {count}; i++)", graph):
        region.line(f"if (!{count}w.left-- && !look(&{count}w)) goto interrupted;")
        index = _index(region, batch)
        for variable, view, pattern in zip(inner, views, patterns, strict=True):
            data = region.let("char *const", _place(view, index, pattern))
            if variable.type.ndim:
                part = region.let_view(data, f"{view}.shape + {ndim}", f"{view}.strides + {ndim}")
                region.bind(variable, part)
            else:
                region.bind(variable, region.let(type_of(variable), f"*({type_of(variable)} *){data}"))
        places = []
        for variable, view in zip(core.outputs, outputs, strict=True):
            data = region.let("char *const", _place(view, index, (False,) * ndim))
            places.append(region.let_view(data, f"{view}.shape + {ndim}", f"{view}.strides + {ndim}"))
            if variable.type.ndim:
                region.destine(variable, places[-1])
        region.write_nodes(graph.toposort())
        for variable, place in zip(core.outputs, places, strict=True):
            if not variable.type.ndim:
                region.line(f"*({type_of(variable)} *){place}.data = {region.number(variable)};")
            elif (view := region.view(variable)) != place:
                for axis in range(variable.type.ndim):
                    region.demand(f"{view}.shape[{axis}] == {place}.shape[{axis}]")
                copy(region, view, place, Operand(variable.type.dtype, (False,) * variable.type.ndim))
    if not region.in_block:
        region.line("come_back();")


def _lengths(signature: Signature, node: Apply, views: Sequence[str], ndim: int):
    """Yield each output with the lengths of its blocks: known, or as axes of inputs are."""
    named = {
        name: f"{view}.shape[{ndim + axis}]"
        for view, names in zip(views, signature[0], strict=True)
        for axis, name in enumerate(names)
    }
    for out, names in zip(node.outputs, signature[1], strict=True):
        static = out.type.shape[ndim:]
        lengths = [named.get(n) if s is None else str(s) for n, s in zip(names, static, strict=True)]
        if None in lengths:
            raise NoText("blocks of a shape that only the first one tells")
        yield out, lengths


def _index(region: RegionWriter, batch: Sequence[str]) -> list[str]:
    """Return the place of block ``i`` along each axis of blocks."""
    found, rest = [], "i"
    for length in reversed(batch[1:]):
        found.append(region.let("long", f"{rest} % {length}"))
        rest = region.let("long", f"{rest} / {length}")
    return [rest, *reversed(found)]


def _place(view: str, index: Sequence[str], pattern: Sequence[bool]) -> str:
    """Return the expression of where a block begins."""
    steps = [f"{at} * {view}.strides[{axis}]" for axis, at in enumerate(index) if not pattern[axis]]
    return " + ".join([f"{view}.data", *steps])
