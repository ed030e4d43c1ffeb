"""Refuse gradients of loops that end by ``until``: PyTensor before 3.1.1 takes them over wrong steps.

It takes the number of rows of the loop's first state for the number of steps, though initial rows are among
them, and goes back over the sequences from there. PyTensor's pull request 2217 mended it.
"""

from collections.abc import Iterable

import pytensor
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape
from pytensor.tensor.subtensor import Subtensor

from synk.compile.programs.graphs.origin import nearest_lines, user_lines
from synk.compile.rewriting.wrong_rewrites import release_of

MENDED = (3, 1, 1)
WRONG = release_of(pytensor.__version__) < MENDED


def check_until_gradients(outputs: Iterable[Variable]) -> None:
    """Raise NotImplementedError if a graph has a gradient that this version of PyTensor computes wrong."""
    for variable in ancestors(list(outputs)) if WRONG else ():
        loop = _loop_gone_back_over(variable.owner) if variable.owner is not None else None
        if loop is not None:
            raise NotImplementedError(
                f"PyTensor {pytensor.__version__} computes wrong gradients of loops that end by until() and "
                "have a state of an earlier step, and this graph has one: use PyTensor 3.1.1 or later, which "
                f"needs Python 3.12, or scan over a number of steps without until().{_lines(loop)}"
            )


def _loop_gone_back_over(node: Apply) -> Apply | None:
    """Return the loop of ``x[outputs[0].shape[0] - 1 :: -1]``, by which gradients reverse sequences.

    None if a node is of another form.
    """
    if not isinstance(node.op, Subtensor) or len(node.inputs) != 3:
        return None
    length = _through(node.inputs[1], ScalarFromTensor)
    length = _through(length, Elemwise)
    shape = _through(length, Subtensor)
    state = _through(shape, Shape)
    loop = None if state is None else state.owner
    if loop is None or not isinstance(loop.op, Scan) or not loop.op.info.as_while:
        return None
    info = loop.op.info
    recurrent = info.n_mit_mot + info.n_mit_sot + info.n_sit_sot
    return loop if recurrent and state is loop.outputs[0] else None


def _through(variable: Variable | None, op: type) -> Variable | None:
    owner = None if variable is None else variable.owner
    return owner.inputs[0] if owner is not None and isinstance(owner.op, op) else None


def _lines(loop: Apply) -> str:
    lines = user_lines(loop.outputs[0]) or nearest_lines(loop)
    return "".join(f"\n  {path}, line {number}: {text}" for path, number, _, text in lines)
