"""Carry symbolic graphs between processes, whatever their depth.

A graph travels as a flat list of nodes in topological order. Pickle's memo then serves as the integer
references: when a node is written, its inputs have been, so nothing recurses and a chain of 20,000
nodes needs no more stack than one node. Graphs inside Ops (OpFromGraph, Scan) are flattened the same way.

    dumps: variables -> roots, nodes in order, outputs -> bytes
    loads: bytes -> the same variables, made anew

Constants travel by value, and so do classes and functions of the script, with the rules that it has
registered; shared variables by an identity that the caller gives them. Of tags only the user's line that
built a node travels. Like any pickle, a payload must come from a trusted sender.
"""

import io
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

from pytensor.compile.ops import FromFunctionOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, NominalVariable, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.link.c.op import ExternalCOp

from synk.compile.programs.graphs.origin import pack, unpack
from synk.compile.programs.graphs.script_rules import learn, rules_of_script, unsendable
from synk.values.by_value import Code, CodePickler, is_of_script

Variables = list[Variable]

# Attributes of an Op that only this process can use, and their values in a new Op: its compiled inner
# function, the closures that build its gradients, the ufunc of a reduction, inferred shapes.
ABSENT = object()
MADE_HERE: dict[str, Any] = {
    "_fn": None,
    "_fn_wrapped": None,
    "_lop_op_cache": {},
    "_rop_op_cache": None,
    "_ufunc": ABSENT,
    "_inner_shape_template": ABSENT,
    "_inner_shape_frozen": ABSENT,
}


def dumps(
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    share: Callable[[Any], int],
    code: Code | None = None,
) -> bytes:
    """Serialise the graph that leads to ``outputs``.

    Parameters
    ----------
    inputs : sequence of Variable
        Roots to keep, in order, used or not.
    outputs : sequence of Variable
        Any variables: repeats, inputs, constants and shared variables included.
    share : callable
        Called once for each shared variable met; returns the integer that stands for it.
    code : Code, optional
        Is told of the classes and functions of the script, which go by value.

    Raises
    ------
    TypeError
        If something in the graph cannot be pickled; the message names the node and its Op.
    """
    file = io.BytesIO()
    pickler = _GraphPickler(file, inputs, share)
    if code is not None:
        pickler.code = code
    try:
        nodes = topological(outputs, inputs)
        pickler.dump((list(inputs), nodes, list(outputs), pack(nodes)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(_blame(pickler.node, f"{error}{pickler.code.unsendable()}")) from error
    _dump_rules(pickler)
    return file.getvalue()


def loads(payload: bytes, shared: Callable[[int], Any]) -> tuple[Variables, Variables]:
    """Rebuild ``(inputs, outputs)`` from what :func:`dumps` returned.

    Parameters
    ----------
    payload : bytes
        From a trusted sender.
    shared : callable
        Called once for each integer that ``share`` gave; returns the shared variable it stands for.
    """
    unpickler = _GraphUnpickler(io.BytesIO(payload), shared)
    inputs, nodes, outputs, lines = unpickler.load()
    learn(unpickler.load())
    unpack(nodes, lines)
    return inputs, outputs


def topological(outputs: Iterable[Variable], roots: Iterable[Variable] = ()) -> list[Apply]:
    """Return the nodes between ``roots`` and ``outputs``, each after those it reads."""
    known: set = set(roots)
    order: list[Apply] = []
    waiting = list(outputs)[::-1]
    while waiting:
        node = waiting[-1].owner
        if waiting[-1] in known or node is None or node in known:
            waiting.pop()
            continue
        ahead = [v for v in node.inputs if v.owner is not None and v not in known and v.owner not in known]
        if ahead:
            waiting.extend(ahead)
        else:
            known.add(node)
            order.append(node)
    return order


def _dump_rules(pickler: "_GraphPickler") -> None:
    """Pickle the rules for the graph's Ops behind the graph, whose pickling has found these Ops."""
    rules = rules_of_script(pickler.kinds, pickler.code)
    try:
        pickler.dump(rules)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(unsendable(rules, error)) from error


class _GraphPickler(CodePickler):
    """A pickler that writes variables, nodes and graphs as calls of the small functions below."""

    def __init__(self, file, roots: Iterable[Variable], share: Callable[[Any], int]):
        super().__init__(file)
        self.node: Apply | None = None  # the last one begun, to blame
        self.kinds: set[type] = set()  # of the Ops met, those inside of others included
        self._share = share
        self._roots = set(roots)
        self._begun: set[Apply] = set()
        self._types: dict = {}
        self._texts: dict[str, str] = {}
        self._ways: dict[type, Callable[[_GraphPickler, Any], Any]] = {}

    def reducer_override(self, obj):
        kind = type(obj)
        if kind not in self._ways:
            # PyTensor's classes are abstract: `issubclass` would ask all their hundreds of subclasses.
            self._ways[kind] = next((WAYS[base] for base in kind.__mro__ if base in WAYS), _as_code)
        return self._ways[kind](self, obj)

    def _reduce_node(self, node):
        self.node = node
        self._begun.add(node)
        return make_node, (node.op, node.inputs, node.outputs)

    def _reduce_graph(self, graph):
        nodes = topological(graph.outputs, graph.inputs)
        return make_graph, (graph.inputs, nodes, graph.outputs, pack(nodes))

    def _reduce_op(self, op):
        self.kinds.add(type(op))
        if any(vars(op).get(name, none) != none for name, none in MADE_HERE.items()):
            return without_caches(op).__reduce_ex__(5)
        if isinstance(op, FromFunctionOp) and not _is_found(op):
            return make_python_op, _parts_of(op)
        if isinstance(op, ExternalCOp):
            # Each holds the text of a source file, of its own; one stands for all that are equal.
            op = copy(op)
            op.func_codes = [self._texts.setdefault(text, text) for text in op.func_codes]
            op.code_sections = {k: self._texts.setdefault(text, text) for k, text in op.code_sections.items()}
            return op.__reduce_ex__(5)
        return super().reducer_override(op)

    def _reduce_variable(self, variable):
        if isinstance(variable, SharedVariable):
            return shared_variable, (self._share(variable),)
        if isinstance(variable, NominalVariable):
            return NotImplemented
        # Equal types are many objects; one stands for all.
        kind = self._types.setdefault(variable.type, variable.type)
        if isinstance(variable, Constant):
            return make_constant, (type(variable), kind, variable.data, variable.name)
        owner = variable.owner
        if owner is None or owner in self._begun or variable in self._roots:
            return make_variable, (kind, variable.name)
        if isinstance(owner, Apply):
            # Met outside a graph, as an attribute of an Op: what leads to it comes along.
            return select_output, (topological([variable]), owner, owner.outputs.index(variable))
        return NotImplemented  # part of a frozen graph, which is flat already


def _as_code(pickler: _GraphPickler, obj: Any) -> Any:
    return CodePickler.reducer_override(pickler, obj)


# How objects of a class, and of those that inherit from it, are pickled.
WAYS: dict[type, Callable[[_GraphPickler, Any], Any]] = {
    Variable: _GraphPickler._reduce_variable,
    Apply: _GraphPickler._reduce_node,
    FunctionGraph: _GraphPickler._reduce_graph,
    Op: _GraphPickler._reduce_op,
}


class _GraphUnpickler(pickle.Unpickler):
    """An unpickler that finds shared variables by the function ``shared``."""

    def __init__(self, file, shared: Callable[[int], Any]):
        super().__init__(file)
        self._shared = shared

    def find_class(self, module: str, name: str):
        if module == __name__ and name == shared_variable.__name__:
            return self._shared
        return super().find_class(module, name)


def shared_variable(identity: int):
    """Raise LookupError; in a pickle, this name stands for the function that looks up shared variables."""
    raise LookupError(f"shared variable {identity} can be looked up by synk.compile.loads only")


def make_variable(kind, name) -> Variable:
    """Return a new variable without an owner; one that is an output gets its node from `make_node`."""
    return kind.make_variable(name)


def make_constant(cls, kind, data, name) -> Constant:
    """Return a new constant of class ``cls``."""
    return cls(kind, data, name=name)


def make_node(op, inputs, outputs) -> Apply:
    """Return a new node, which becomes the owner of its outputs."""
    return Apply(op, inputs, outputs)


def make_python_op(function, inputs, outputs, infer_shape) -> Op:
    """Return the Op that ``pytensor.wrap_py`` makes of a function."""
    return FromFunctionOp(function, inputs, outputs, infer_shape)


def _parts_of(op: FromFunctionOp) -> tuple[Any, ...]:
    function, infer_shape = (vars(op)[f"_FromFunctionOp__{name}"] for name in ("fn", "infer_shape"))
    return function, op.itypes, op.otypes, infer_shape


def _is_found(op: FromFunctionOp) -> bool:
    """Tell whether workers can import the Op, by the module and the name of its function."""
    function, *_ = _parts_of(op)
    module = sys.modules.get(function.__module__)
    return not is_of_script(function) and getattr(module, function.__name__, None) is op


def make_graph(inputs, nodes, outputs, lines) -> FunctionGraph:
    """Return the inner graph of an Op; ``nodes`` are unpickled before, so that ``outputs`` have owners."""
    unpack(nodes, lines)
    return FunctionGraph(inputs, outputs, clone=False)


def select_output(nodes, owner, index) -> Variable:
    """Return one output of ``owner``, the last of ``nodes``."""
    return owner.outputs[index]


def without_caches(op: Op) -> Op:
    """Return a copy of an Op without what it has cached for this process."""
    op = copy(op)
    for name in MADE_HERE.keys() & vars(op).keys():
        if MADE_HERE[name] is ABSENT:
            del vars(op)[name]
        else:
            vars(op)[name] = copy(MADE_HERE[name])
    return op


def _blame(node: Apply | None, error: str) -> str:
    if node is None:
        return f"the graph cannot be pickled: {error}"
    return (
        f"Op {node.op!r} of node {node} cannot be pickled: {error}. Ops go to the ranks with what "
        "they hold and what their methods read: leave that out, or make it where it is used"
    )
