"""Save shared variables to a file, and load them back on every rank.

    save: variables -> checkpoint_contents -> copies of one moment -> checkpoint_format -> atomic_write
    load: file -> entries, checked against the variables -> arrays, generator_of -> every rank

Ranks hold the same parameters, so rank 0 speaks for all::

    step = make_train_function(loss, params, inputs, updates.adam)
    ...
    checkpoint.save("model.ckpt", step, {"epoch": epoch, "best": best})
    kept = checkpoint.load("model.ckpt", step)  # kept["epoch"], kept["best"]
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Collection, Mapping
from typing import Any, BinaryIO

import numpy as np

import synk
from synk.extensions import checkpoint_format
from synk.extensions.atomic_write import atomic_write
from synk.extensions.checkpoint_contents import named, plain, value_of
from synk.extensions.checkpoint_format import (
    ArrayEntry,
    CheckpointCorrupt,
    CheckpointVersion,
    Entry,
    GeneratorEntry,
    ValueEntry,
    shortened,
)

__all__ = ["CheckpointCorrupt", "CheckpointNames", "CheckpointVersion", "load", "save"]

NAMES_SHOWN = 10  # in errors; a file may have any number

# Where a generator's state has its position, and the last one: there, the next draw fills the buffer anew.
POSITIONS: dict[str, tuple[tuple[str, ...], int]] = {
    "MT19937": (("state", "pos"), 624),
    "Philox": (("buffer_pos",), 4),
}


class CheckpointNames(synk.SynkError, KeyError):
    """A checkpoint holds other names than those asked for."""

    __str__ = Exception.__str__  # KeyError's would quote the sentence


def save(path: str | os.PathLike[str], variables: Any, values: Mapping[str, Any] | None = None) -> None:
    """Write the values of shared variables on rank 0 to a file, and plain values beside them.

    All are of one moment: calls of other threads wait while they are copied, which takes the memory of one
    more copy. The file is replaced as a whole, once what was written has been read again: if anything fails,
    the old one stays.

    Parameters
    ----------
    path : path-like
        Of a regular file, which keeps its permissions, or a new one.
    variables : dict of str to shared variable, Function, `Updates`, shared variable, or list of those
        Tensors and random generators. For going on as if nothing had happened, the function that
        `make_train_function` returned, of which parameters, the state of the rule and the variables of its
        updates are saved, or what the update rule returned. What comes without a name is saved under the
        variable's own.
    values : dict of str to plain value, optional
        Numbers, strings, None, and lists and dicts of those: what the script keeps itself, such as the
        number of the epoch. NumPy's numbers become Python's.

    Raises
    ------
    TypeError
        A name is not a string, a variable neither a shared tensor nor a shared generator, or a value not
        plain.
    ValueError
        A variable has no name, or two things have the same.
    SynkStateError
        This process is not the master, or this is called in the middle of a call, by a signal handler.
    OSError
        From the file system.
    """
    kept = plain(values or {})
    with synk.turn("checkpoint.save"):
        copies = {name: variable.get_value() for name, variable in named(variables).items()}
    if both := sorted(copies.keys() & kept.keys()):
        raise ValueError(f"{both} name variables as well as values; give the values other names")
    with atomic_write(path) as file:
        checkpoint_format.write(file, {**copies, **kept})
        checkpoint_format.read_entries(file)


def load(path: str | os.PathLike[str], variables: Any) -> dict[str, Any]:
    """Give shared variables the values saved under their names, on every rank.

    Either everything fits or nothing is changed. Calls of other threads wait while the values are given,
    and so do handlers of signals: an interrupt comes before or after.

    Parameters
    ----------
    path : path-like
    variables : as of `save`
        With the names, shapes and dtypes that were saved.

    Returns
    -------
    dict of str to plain value
        The `values` that were saved.

    Raises
    ------
    CheckpointCorrupt, CheckpointVersion
        The file is not whole, not a checkpoint, or of another version.
    CheckpointNames
        Names are missing from the file, or not asked for. Also a KeyError.
    ValueError
        A shape, a dtype or the kind of a generator differs; or names as for `save`.
    TypeError, SynkStateError
        As `save`.
    OSError
        From the file system.

    Notes
    -----
    A generator gets its state back on rank 0; other ranks get streams of their own, made from it as
    those at the start were. They go on where they were if all ranks had drawn equally often.
    """
    with synk.turn("checkpoint.load"):
        wanted = named(variables)
        present = {name: value_of(variable) for name, variable in wanted.items()}
    with _opened(path) as file:
        arrays = [value for value in present.values() if isinstance(value, np.ndarray)]
        entries = checkpoint_format.read_entries(file, most=sum(array.nbytes for array in arrays))
        _check_names(entries, present)
        for name, value in present.items():
            _check_fit(name, entries[name], value)
        loaded = {name: _loaded(file, entries[name], value) for name, value in present.items()}
    with synk.turn("checkpoint.load"):
        _assign([(wanted[name], value) for name, value in loaded.items()])
    return {name: entry.value for name, entry in entries.items() if isinstance(entry, ValueEntry)}


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file; a pipe would keep who reads it waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise CheckpointCorrupt(f"{os.fspath(path)!r} is not a regular file; load one that was saved")


def _check_names(entries: Mapping[str, Entry], present: Mapping[str, Any]) -> None:
    variables = {name for name, entry in entries.items() if not isinstance(entry, ValueEntry)}
    absent, extra = present.keys() - entries.keys(), variables - present.keys()
    if absent or extra:
        raise CheckpointNames(
            f"the checkpoint lacks {_listed(absent)} and also has {_listed(extra)}; "
            "pass the variables that were saved"
        )


def _listed(names: Collection[str]) -> str:
    shown = [shortened(name) for name in sorted(names)[:NAMES_SHOWN]]
    rest = len(names) - len(shown)
    return f"{shown} and {rest} more" if rest else f"{shown}"


def _check_fit(name: str, entry: Entry, value: Any) -> None:
    saved, wanted = _kind_of_entry(entry), _kind_of_value(value)
    if saved != wanted:
        raise ValueError(
            f"variable '{name}' is {wanted}, but {saved} was saved; load it into a variable of that kind"
        )


def _kind_of_entry(entry: Entry) -> str:
    if isinstance(entry, ArrayEntry):
        return f"an array of dtype {entry.dtype} and shape {entry.shape}"
    if isinstance(entry, ValueEntry):
        return "a plain value"
    return f"a {shortened(entry.state['bit_generator'])} generator"


def _kind_of_value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    return f"a {type(value.bit_generator).__name__} generator"


def _loaded(file: BinaryIO, entry: Entry, value: Any) -> Any:
    if isinstance(entry, ArrayEntry):
        return checkpoint_format.read_array(file, entry)
    assert isinstance(entry, GeneratorEntry)
    bits = value.bit_generator
    try:
        return generator_of(entry.state, like=bits)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        said = f"not the state of a {type(bits).__name__} generator: {shortened(error)}"
        raise CheckpointCorrupt(said) from None


def generator_of(state: Mapping[str, Any], like: Any) -> np.random.Generator:
    """Return a generator in the state that a bit generator gave, with lists in place of arrays.

    Bit generators take what they are given: with a position outside of their buffer they read foreign memory
    at the next draw, and from a state that never changes they draw without end. So a state is looked at
    before and after it is handed over. Raises ValueError, TypeError, KeyError, IndexError or OverflowError
    if no bit generator of the kind of ``like`` has such a state.
    """
    for kind, (path, last) in POSITIONS.items():
        if isinstance(like, getattr(np.random, kind)):
            position: Any = state
            for key in path:
                position = position[key]
            if type(position) is not int or not 0 <= position <= last:
                raise ValueError(f"{path[-1]} is {position!r}, not a number from 0 to {last}")
    bits = type(like)()
    bits.state = state
    if _without_arrays(bits.state) != _without_arrays(state) or state.get("has_uint32", 0) not in (0, 1):
        raise ValueError("it has other entries than a generator gives")
    if isinstance(like, np.random.MT19937) and not any(state["state"]["key"]):
        raise ValueError("its key is zero, from which every number is the same")
    if isinstance(like, np.random.PCG64 | np.random.PCG64DXSM) and state["state"]["inc"] % 2 == 0:
        raise ValueError("its increment is even")
    return np.random.Generator(bits)


def _without_arrays(state: Any) -> Any:
    """Return a state with lists in place of arrays."""
    if isinstance(state, Mapping):
        return {key: _without_arrays(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _assign(pairs: list[tuple[Any, Any]]) -> None:
    if not _is_running():
        for variable, value in pairs:
            variable.set_value(value, borrow=True)
        return
    tensors = [pair for pair in pairs if isinstance(pair[1], np.ndarray)]
    generators = [pair for pair in pairs if not isinstance(pair[1], np.ndarray)]
    # First, and where there are none, too: if the run is broken, nothing has changed.
    synk.broadcast([variable for variable, _ in tensors], [value for _, value in tensors])
    with warnings.catch_warnings():
        # It says that the other ranks keep their values; the broadcast below sees to that.
        warnings.simplefilter("ignore", synk.SynkWarning)
        for variable, value in generators:
            variable.set_value(value, borrow=True)
    synk.broadcast([variable for variable, _ in generators])


def _is_running() -> bool:
    try:
        synk.pids()
    except synk.SynkStateError:
        return False
    return True
