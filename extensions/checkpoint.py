"""Save shared variables to a file, and load them back on every rank.

    save: named variables -> values of rank 0 -> checkpoint_format -> atomic_write -> file
    load: file -> entries, checked against the variables -> arrays -> every rank

Ranks hold the same parameters, so rank 0 speaks for all. Imports NumPy and the public API.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

import synk
from synk.extensions import checkpoint_format
from synk.extensions.atomic_write import atomic_write
from synk.extensions.checkpoint_format import ArrayEntry, CheckpointCorrupt, CheckpointVersion, Entry

__all__ = ["CheckpointCorrupt", "CheckpointNames", "CheckpointVersion", "load", "save"]


class CheckpointNames(synk.SynkError, KeyError):
    """A checkpoint holds other names than those asked for."""

    __str__ = Exception.__str__  # KeyError's would quote the sentence


def save(path: str | os.PathLike[str], named_variables: Mapping[str, Any]) -> None:
    """Write the values of shared variables on rank 0 to a file.

    The file is replaced as a whole: if anything fails, the old one stays.

    Parameters
    ----------
    path : path-like
    named_variables : dict of str to shared variable
        Tensors and random generators. For going on as if nothing had happened: parameters, the state
        of the update rule (every variable of its `param_updates`) and generators.

    Raises
    ------
    TypeError
        A name is not a string, or a variable neither a shared tensor nor a shared generator.
    OSError
        From the file system.
    """
    values = _values(named_variables)
    with atomic_write(path) as file:
        checkpoint_format.write(file, values)


def load(path: str | os.PathLike[str], named_variables: Mapping[str, Any]) -> None:
    """Give shared variables the values saved under their names, on every rank.

    Either everything fits or nothing is changed.

    Parameters
    ----------
    path : path-like
    named_variables : dict of str to shared variable
        With the names, shapes and dtypes that were saved.

    Raises
    ------
    CheckpointCorrupt, CheckpointVersion
        The file is not whole, not a checkpoint, or of another version.
    CheckpointNames
        Names are missing from the file, or not asked for. Also a KeyError.
    ValueError
        A shape, a dtype or the kind of a generator differs.
    TypeError
        As `save`.
    OSError
        From the file system.

    Notes
    -----
    A generator gets its state back on rank 0; other ranks get streams of their own, made from it as
    those at the start were. They go on where they were if all ranks had drawn equally often.
    """
    values = _values(named_variables)
    with open(path, "rb") as file:
        entries = checkpoint_format.read_entries(file)
        _check_names(entries, values)
        for name, value in values.items():
            _check_fit(name, entries[name], value)
        loaded = {name: _loaded(file, entries[name], value) for name, value in values.items()}
    _assign([(named_variables[name], value) for name, value in loaded.items()])


def _values(named_variables: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, variable in named_variables.items():
        if not isinstance(name, str):
            raise TypeError(f"name {name!r} is not a string")
        value = variable.get_value(borrow=True) if isinstance(variable, SharedVariable) else variable
        if value is variable or not isinstance(value, np.ndarray | np.random.Generator):
            raise TypeError(
                f"variable '{name}' is neither a shared tensor nor a random generator: {variable!r}"
            )
        values[name] = value
    return values


def _check_names(entries: Mapping[str, Entry], values: Mapping[str, Any]) -> None:
    absent, extra = sorted(values.keys() - entries.keys()), sorted(entries.keys() - values.keys())
    if absent or extra:
        raise CheckpointNames(
            f"the checkpoint lacks {absent} and has {extra} unasked for; pass the names that were saved"
        )


def _check_fit(name: str, entry: Entry, value: Any) -> None:
    saved, wanted = _kind_of_entry(entry), _kind_of_value(value)
    if saved != wanted:
        raise ValueError(f"variable '{name}' is {wanted}, but {saved} was saved; load it into one like that")


def _kind_of_entry(entry: Entry) -> str:
    if isinstance(entry, ArrayEntry):
        return f"an array of dtype {entry.dtype} and shape {entry.shape}"
    return f"a {entry.state.get('bit_generator')} generator"


def _kind_of_value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    return f"a {type(value.bit_generator).__name__} generator"


def _loaded(file: Any, entry: Entry, value: Any) -> Any:
    if isinstance(entry, ArrayEntry):
        return checkpoint_format.read_array(file, entry)
    bits: Any = type(value.bit_generator)()
    try:
        bits.state = entry.state
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise CheckpointCorrupt(f"not the state of a {type(bits).__name__} generator: {error}") from error
    return np.random.Generator(bits)


def _assign(pairs: list[tuple[Any, Any]]) -> None:
    if not _is_running():
        for variable, value in pairs:
            variable.set_value(value, borrow=True)
        return
    tensors = [pair for pair in pairs if isinstance(pair[1], np.ndarray)]
    generators = [pair for pair in pairs if not isinstance(pair[1], np.ndarray)]
    if tensors:
        synk.broadcast([variable for variable, _ in tensors], [value for _, value in tensors])
    for variable, value in generators:
        with warnings.catch_warnings():
            # It says that the other ranks keep their values; the broadcast below sees to that.
            warnings.simplefilter("ignore", synk.SynkWarning)
            variable.set_value(value, borrow=True)
        synk.broadcast(variable)


def _is_running() -> bool:
    try:
        synk.pids()
    except synk.SynkStateError:
        return False
    return True
