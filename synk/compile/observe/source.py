"""Show what a function was compiled to: its Python program, then the C text of each of its regions.

function of pytensor.function -> source_of -> text
"""

import re
from typing import Any

from pytensor.graph.basic import Apply

from synk.compile.programs.graphs.origin import nearest_lines
from synk.compile.programs.text.program import Program
from synk.compile.regions.frame import NAME
from synk.compile.regions.grouping import reason_against
from synk.compile.regions.region import nodes_of


def source_of(function: Any) -> str:
    """Return the program of a function as text.

    Parameters
    ----------
    function : pytensor.compile.Function
        In a mode whose linker is an `ArrayLinker`.

    Returns
    -------
    str
        The Python program, in which comments say why a node is in no region; then the C text of each region,
        under the name by which the program calls it, with comments that list its nodes and the lines that
        built them.

    Raises
    ------
    TypeError
        If the function is of another mode.
    """
    program = getattr(getattr(function, "vm", None), "jit_fn", None)
    if not isinstance(program, Program):
        maker = getattr(function, "maker", None)
        raise TypeError(
            "source_of shows functions of pytensor.function(..., mode=synk.compile.array_mode()), "
            f"not {f'those of {maker.mode.linker!r}' if maker else repr(function)}"
        )
    lines = program.source.splitlines()
    regions = []
    for number, node in program.nodes.items():
        line = lines[number - 1]
        if nodes_of(node):
            regions.append(_region(re.sub(r".* = (\w+)\(.*", r"\1", line), node))
        elif function.maker.mode.linker.native and (reason := reason_against(node)):
            lines[number - 1] = f"{line}  # {reason}"
    return "\n".join([*lines, "", *regions])


def _region(name: str, node: Apply) -> str:
    nodes = "\n".join(f"   {k}: {one.op}{_place(one)}" for k, one in enumerate(nodes_of(node)))
    text = node.op.text
    lines = "\n".join([*text.declarations, text.source.replace(NAME, name)])
    return f"/* {name}\n{nodes.replace('*/', '* /')} */\n{lines}"


def _place(node: Apply) -> str:
    lines = nearest_lines(node)
    return f"    {lines[0][0]}:{lines[0][1]}" if lines else ""
