"""Find the names that a function's bytecode reads and assigns, without running it.

    code -> globals_read, globals_of, cells_of, attributes_of -> names

The code of functions and comprehensions that are defined inside the function counts as part of it.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any


def globals_read(code: CodeType) -> set[str]:
    """Return the names of the globals and builtins that code reads or assigns."""
    names = _named(code, "LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
    return names.union(*map(globals_read, _inner(code)))


def globals_of(code: CodeType) -> set[str]:
    """Return the names of the globals that code assigns or deletes."""
    return _named(code, "STORE_GLOBAL", "DELETE_GLOBAL").union(*map(globals_of, _inner(code)))


def cells_of(code: CodeType) -> set[str]:
    """Return the names of the closure's variables that code assigns."""
    names = _named(code, "STORE_DEREF", "DELETE_DEREF").union(*map(cells_of, _inner(code)))
    return names.intersection(code.co_freevars)


def attributes_of(code: CodeType) -> set[tuple[str, str]]:
    """Return pairs (variable, attribute) of names: what code sets on globals and on closure variables."""
    found = {
        (target.argval, attribute)
        for target, attribute in _attributes(code)
        if target.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF")
    }
    return found.union(*map(attributes_of, _inner(code)))


def attributes_of_class(member: Any) -> set[str]:
    """Return the names of the attributes that a method or class method sets on its class.

    A class method sets them on its first argument, a method on ``type(self)`` or ``self.__class__``.
    """
    function = getattr(member, "__func__", member)
    if not isinstance(function, FunctionType):
        return set()
    found = set()
    for target, attribute in _attributes(function.__code__):
        by_argument = isinstance(member, classmethod) and target.opname.startswith("LOAD_FAST")
        by_class = target.opname == "CALL" or (target.opname, target.argval) == ("LOAD_ATTR", "__class__")
        if by_argument or by_class:
            found.add(attribute)
    return found


def _attributes(code: CodeType) -> Iterator[tuple[dis.Instruction, str]]:
    """Yield each attribute that code sets, with the instruction that loaded the object it is set on."""
    instructions = [*dis.get_instructions(code)]
    for place, instruction in enumerate(instructions):
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            yield _target(instructions[:place], instruction.argval), instruction.argval


def _target(before: Sequence[dis.Instruction], attribute: str) -> dis.Instruction:
    if before[-1].opname == "SWAP":  # ``x.a += 1`` reads the attribute from a copy of x
        for place in range(len(before) - 1, 1, -1):
            read, copied = before[place], before[place - 1]
            if (read.opname, read.argval, copied.opname) == ("LOAD_ATTR", attribute, "COPY"):
                return before[place - 2]
    return before[-1]


def _named(code: CodeType, *operations: str) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname in operations}


def _inner(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]
