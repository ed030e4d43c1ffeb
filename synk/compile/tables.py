"""All tables that an Op may enter, in one place: what an Op says about itself is an entry in one of these.

    table            what an Op says there                         without an entry
    ---------------  --------------------------------------------  --------------------------------------
    `array_funcify`  its implementation on arrays                  its own ``perform`` runs on the host
    `array_scalar`   a scalar Op's function of whole arrays        the same
    `takes_out`      a mark: it writes where a result belongs      the result is copied there
    `side`           whether it runs on the host or the device     on the device, if its values are arrays
    `host_inputs`    which inputs it reads on the host             none
    `free_inputs`    which inputs may lie on either side           none
    `width`          which of its arrays may have 16 bits          none
    `goes_by_dtype`  whether its implementation takes these        no: they are converted around it
    `array_rounded`  its implementation on arrays of 16 bits       the one on float32, with conversions
    `flops_of`       how a profile counts its operations           they are not counted

Tables for one kind of Op are beside it: `synk.compile.programs.elementwise.template` for a scalar Op's text
in a kernel, `synk.compile.regions.c_texts.c_text` for an Op's C in a region,
`synk.compile.dispatch.sampler.sampler` for how a random variable draws, `synk.exact.rules.table.relate` for
what an Op makes of rows that ranks share, `synk.exact.rules.elementwise.parts` for the same of a scalar Op,
`synk.ops.layout.converted` for Ops with channels last. All are open: ``array_funcify.register(MyOp)`` from
anywhere adds an entry.

The host is where Python and NumPy run; the device is where the arrays of another module live. With NumPy the
two are one.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial, singledispatch
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType

from synk.compile.host_call import HostCall

HOST, DEVICE, FOLLOW, MOVED = "host", "device", "follow", "moved"

# --- implementations ---------------------------------------------------------------------------------


@singledispatch
def array_funcify(op: Any, node: Apply, xp: ModuleType) -> Callable:
    """Return the implementation of ``node`` on arrays of the module ``xp``.

    An Op without an entry runs its own Python implementation, on the host.
    """
    return HostCall(node, xp)


@singledispatch
def array_scalar(scalar_op: Any, node: Apply, xp: ModuleType) -> Callable | None:
    """Return ``scalar_op`` as a function of whole arrays, or None if there is none.

    Parameters
    ----------
    scalar_op : ScalarOp
        Operation of ``node``'s Elemwise.
    node : Apply
        Gives the dtypes.
    xp : module
        Array module.
    """
    return None


def takes_out(function: Callable) -> Callable:
    """Mark ``function`` as one that accepts ``out=``.

    ``implementation(*inputs, out=array)`` writes to ``array``, which has the declared dtype, the shape of the
    result and C order, and returns it; the bits are those of the call without ``out``. Of several outputs,
    ``out`` is a tuple, with None for those that are to be new.
    """
    function.takes_out = True  # type: ignore[attr-defined]
    return function


def accepts_out(function: Any, xp: Any) -> bool:
    """Tell whether ``function``, or the function that it is a ``partial`` of, accepts ``out=``.

    Functions marked by `takes_out` do, and so do the array module's own ufuncs, ``dot`` and ``matmul``.
    """
    if isinstance(function, partial):
        function = function.func
    # Other array modules have a ufunc class of their own, of the same name.
    is_ufunc = type(function).__name__ == np.ufunc.__name__
    return is_ufunc or hasattr(function, "takes_out") or function in (xp.dot, xp.matmul)


# --- host and device ---------------------------------------------------------------------------------


@singledispatch
def side(op: Any, node: Apply) -> str:
    """Return where ``node`` computes.

    ``HOST``: with NumPy, all inputs on the host. ``DEVICE``: with the array module, inputs on the device.
    ``FOLLOW``: on the host if its inputs are there and it is small or wanted there, else on the device.

    ``MOVED``: on the host because the device has no values of such a type; the node is listed in the
    program's ``host_nodes``. This is so for Ops without an entry that handle generators, sparse matrices or
    lists.
    """
    arrays = (DenseTensorType, ScalarType, SliceType, NoneTypeT)
    known = all(isinstance(variable.type, arrays) for variable in (*node.inputs, *node.outputs))
    return DEVICE if known else MOVED


@singledispatch
def host_inputs(op: Any, node: Apply) -> Collection[int]:
    """Return the positions of the inputs that ``node``'s implementation reads on the host: lengths, axes."""
    return ()


@singledispatch
def free_inputs(op: Any, node: Apply) -> Collection[int]:
    """Return the positions of the inputs that may be on the other side than the node.

    Of such an input the implementation reads only the shape, or it has one element, for which a NumPy scalar
    serves as well.
    """
    return ()


# --- arrays of 16 bits -------------------------------------------------------------------------------


class Width(NamedTuple):
    """The arrays of a node that may have 16 bits; numbers are positions of inputs and outputs.

    Attributes
    ----------
    rounds : collection of int
        Inputs that are rounded to 16 bits for this node, if they are not stored so already.
    takes : collection of int
        Inputs that the node reads in either width, without a conversion.
    requires : collection of int
        Inputs that must all be of 16 bits for the outputs to be.
    gives : collection of int
        Outputs that may be of 16 bits.
    delicate : collection of int
        Those of ``gives`` that are float32 unless all their readers would round them anyway.
    keeps : bool
        Whether the outputs consist of elements of the first input, and so have the width in which it is read.
    commutes : bool
        Whether rounding the inputs, or the result, gives the same as rounding where the result is read.
    """

    rounds: Collection[int] = ()
    takes: Collection[int] = ()
    requires: Collection[int] = ()
    gives: Collection[int] = ()
    delicate: Collection[int] = ()
    keeps: bool = False
    commutes: bool = False


WIDE = Width()


def is_float_array(variable: Variable) -> bool:
    """Tell whether a variable is float32 and has axes."""
    kind = variable.type
    return isinstance(kind, DenseTensorType) and kind.dtype == "float32" and kind.ndim > 0


@singledispatch
def width(op: Any, node: Apply) -> Width:
    """Return which arrays of ``node`` may have 16 bits; an Op without an entry reads and gives float32."""
    return WIDE


@singledispatch
def goes_by_dtype(op: Any, node: Apply, xp: ModuleType) -> bool:
    """Tell whether the implementation of ``node`` itself computes with arrays of 16 bits, in float32.

    It then gives arrays of 16 bits if all inputs in ``Width.requires`` have 16 bits.
    """
    return False


@singledispatch
def array_rounded(
    op: Any,
    node: Apply,
    implementation: Callable,
    reads: Sequence[bool],
    gives: Sequence[bool],
    *,
    xp: ModuleType,
    dtype: str,
) -> Callable:
    """Return an implementation of a node some of whose arrays are of 16 bits.

    Parameters
    ----------
    op, node : Op, Apply
    implementation : callable
        The node's implementation on float32.
    reads, gives : sequence of bool
        For each input and output, whether it is of ``dtype``.
    xp : module
    dtype : {"float16", "bfloat16"}

    Returns
    -------
    callable
        With an attribute ``stored``: the dtype of each output.
    """
    raise NotImplementedError(f"{op} has no implementation on arrays of 16 bits")


# --- profiles ----------------------------------------------------------------------------------------

Count = Callable[[Sequence[Any], Sequence[Any]], int]


@singledispatch
def flops_of(op: Any) -> Count | None:
    """Return ``count(inputs, results)``, which counts floating-point operations; None if they are unknown.

    A product that is added to a sum counts as two.
    """
    return None
