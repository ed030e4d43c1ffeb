"""Entries for ScalarLoop: a scalar graph repeated for each element of arrays, by itself or in an Elemwise.

All elements take a step together. Elements that are done are taken out, so that a few slow ones do not make
all others compute on. Whether any is done is read on the host at each step.
"""

from itertools import count

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import Composite
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from synk.compile.programs.text.transfer import to_host
from synk.compile.tables import array_funcify, array_scalar


@array_funcify.register(ScalarLoop)
def scalar_loop(op, node, xp):
    """Run a loop whose inputs are scalars."""
    function = array_scalar(op, node, xp)

    def run(*scalars):
        results = function(*[xp.asarray(x) for x in scalars])
        return results[()] if len(node.outputs) == 1 else tuple([result[()] for result in results])

    return run


@array_scalar.register(ScalarLoop)
def elementwise_loop(scalar_op, node, xp):
    """Return the function that runs a loop for each element of arrays."""
    return ElementLoop(scalar_op, node, xp)


class ElementLoop:
    """The implementation of a loop: ``loop(n_steps, *states, *constants)`` returns the states.

    With ``until`` it also returns whether that has ended the loop of each element.

    Parameters
    ----------
    op : ScalarLoop
    node : Apply
        Gives the dtypes.
    xp : module
    """

    def __init__(self, op: ScalarLoop, node: Apply, xp):
        self.xp, self.is_while = xp, op.is_while
        self.dtypes = [variable.type.dtype for variable in node.outputs]
        self.n_states = len(self.dtypes) - op.is_while
        step = vector_node(op)
        self.step = array_funcify(step.op, step, xp)

    def __call__(self, n_steps, *inputs):
        xp = self.xp
        if not self.is_while and to_host((n_steps < 0).any(), xp):
            raise ValueError(f"a ScalarLoop of {n_steps.min()} steps; n_steps must not be negative")
        shape = np.broadcast_shapes(n_steps.shape, *[x.shape for x in inputs])
        # Numbers may come as NumPy's scalars, which not every array module broadcasts.
        limits, *values = [xp.broadcast_to(xp.asarray(x), shape).reshape(-1) for x in (n_steps, *inputs)]
        states, constants = values[: self.n_states], values[self.n_states :]
        if self.is_while:
            states.append(xp.zeros(len(limits), bool))
        results = [xp.empty(len(limits), dtype) for dtype in self.dtypes]
        self._run(results, limits, states, constants)
        results = [result.reshape(shape) for result in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, results, limits, states, constants):
        """Take all steps, and write to ``results`` the states of each element when it is done."""
        places = self.xp.arange(len(limits))
        for i in count():
            done = limits <= i
            if self.is_while:
                done |= states[-1]
            if to_host(done.any(), self.xp):
                for result, state in zip(results, states, strict=True):
                    result[places[done]] = state[done]
                places, limits = places[~done], limits[~done]
                states, constants = [x[~done] for x in states], [x[~done] for x in constants]
            if not len(places):
                return
            new = self.step(*states[: self.n_states], *constants)
            states = list(new) if isinstance(new, tuple) else [new]


def vector_node(op: ScalarLoop) -> Apply:
    """Return the step of a loop as an Elemwise on vectors."""
    graph = op.fgraph.unfreeze() if hasattr(op.fgraph, "unfreeze") else op.fgraph
    vectors = [TensorType(variable.type.dtype, (None,))() for variable in graph.inputs]
    return Elemwise(Composite(graph.inputs, graph.outputs))(*vectors, return_list=True)[0].owner
