"""Entry for Blockwise: a core Op over leading batch axes, in one array call if there is one, else in a loop.

core Op -> its entry -> .batched, or a function that the Op names -> one call
                     -> no such function                          -> the entry on each matrix
"""

from itertools import chain
from operator import attrgetter

import numpy as np
from pytensor.tensor.blockwise import Blockwise

from synk.compile.array_modules import array_module
from synk.compile.dispatch.broadcast import length_check
from synk.compile.dispatch.lapack import as_declared
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify, flops_of


@flops_of.register(Blockwise)
def count_of_the_core(op):
    """Return the count of the core Op, which holds for batches too."""
    return flops_of(op.core_op)


@array_funcify.register(Blockwise)
def blockwise(op, node, xp):
    """Run a core Op on every matrix or vector of a batch."""
    core = array_funcify(op.core_op, op._create_dummy_core_node(node.inputs), xp)
    batched = getattr(core, "batched", None) or batched_function(op, xp)
    if batched is None and isinstance(core, HostCall):
        return HostCall(node, xp)  # one trip to the host for the whole batch
    return Batch(op, node, xp, core, batched)


def batched_function(op: Blockwise, xp):
    """Return the function of ``xp`` that computes ``op`` on whole batches, or None.

    The Op itself names the function, ``matmul`` for example. Names in SciPy are left out, as ``xp`` has no
    such module.
    """
    spec = op.gufunc_spec or getattr(op.core_op, "gufunc_spec", None)
    if spec is None or len(op.outputs_sig) > 1 or spec[0].startswith("scipy."):
        return None
    name = spec[0].removeprefix("numpy.")
    return array_module(xp).matmul if name == "matmul" else attrgetter(name)(xp)


class Batch:
    """The implementation of a Blockwise.

    ``core`` implements the core Op on one matrix, and decides what failure means. ``batched``, or None,
    computes the whole batch at once; if it raises LinAlgError, ``core`` computes matrix by matrix.
    """

    def __init__(self, op, node, xp, core, batched):
        self.host_nodes = getattr(core, "host_nodes", ())
        self._op, self._xp, self._core, self._batched = op, xp, core, batched
        self._outputs, self._signature = node.outputs, (op.inputs_sig, op.outputs_sig)
        self._batch_ndim = op.batch_ndim(node)
        self._destroyed = set(chain.from_iterable(op.destroy_map.values()))
        self._check = length_check([variable.type.shape[: self._batch_ndim] for variable in node.inputs])

    def __call__(self, *inputs):
        if self._check is not None:
            self._check(inputs)
        results = self._run(inputs)
        if len(self._outputs) == 1:
            return as_declared(results, self._outputs[0])
        return tuple([as_declared(r, variable) for r, variable in zip(results, self._outputs, strict=True)])

    def _run(self, inputs):
        if self._batched is not None:
            try:
                return self._batched(*inputs)
            except np.linalg.LinAlgError:
                pass  # so that the other matrices of the batch have results
        results = self._one_by_one(inputs)
        return results[0] if len(results) == 1 else results

    def _one_by_one(self, inputs):
        shape = np.broadcast_shapes(*[x.shape[: self._batch_ndim] for x in inputs])
        if 0 in shape:
            return self._empty(shape, inputs)
        inputs = [self._spread(i, x, shape) for i, x in enumerate(inputs)]
        stacks = None
        for index in np.ndindex(shape):
            values = self._core(*[x[index] for x in inputs])
            values = (values,) if len(self._outputs) == 1 else values
            if stacks is None:
                stacks = [self._xp.empty(shape + value.shape, value.dtype) for value in values]
            for stack, value in zip(stacks, values, strict=True):
                # Without this check, a length of 1 would broadcast in the assignment.
                if value.shape != stack.shape[len(shape) :]:
                    raise ValueError(f"a result of shape {value.shape} does not fit into {stack.shape}")
                stack[index] = value
        return stacks

    def _spread(self, position, x, shape):
        """Broadcast an input to the shape of the batch."""
        if x.shape[: self._batch_ndim] == shape:
            return x
        # An input that the core Op reads on the host is a NumPy array.
        xp = np if isinstance(x, np.ndarray) else self._xp
        x = xp.broadcast_to(x, shape + x.shape[self._batch_ndim :])
        # The core Op may overwrite it, but reads it once for each matrix.
        return x.copy() if position in self._destroyed else x

    def _empty(self, shape, inputs):
        """Return the results of an empty batch; their axes are as long as inputs' axes of the same name."""
        lengths = {}
        for x, names in zip(inputs, self._signature[0], strict=True):
            lengths.update(zip(names, x.shape[self._batch_ndim :], strict=True))
        unknown = [n for n in chain.from_iterable(self._signature[1]) if not (n in lengths or n.isnumeric())]
        if unknown:
            raise ValueError(f"an empty batch leaves open how long {', '.join(unknown)} of {self._op} are")
        return [
            self._xp.empty((*shape, *[int(lengths.get(name, name)) for name in names]), variable.type.dtype)
            for names, variable in zip(self._signature[1], self._outputs, strict=True)
        ]
