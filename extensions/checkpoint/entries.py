"""Decide whether an entry of a checkpoint fits a shared variable, and read its value.

entry, variable's type and value, number of ranks -> check_fit -> ValueError, before anything is changed
file, entry -> loaded_value -> array, generator, Rows or OfRanks
"""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np

from synk.extensions.checkpoint import file_format
from synk.extensions.checkpoint.file_format import (
    ArrayEntry,
    CheckpointCorrupt,
    Entry,
    GeneratorEntry,
    OfRanks,
    OfRanksEntry,
    Rows,
    RowsEntry,
    ValueEntry,
    shortened,
)
from synk.extensions.checkpoint.generators import generator_of


def check_fit(name: str, entry: Entry, kind: Any, value: Any, n_ranks: int) -> None:
    """Raise ValueError if a saved entry does not fit a variable of this type and value, on so many ranks."""
    if isinstance(entry, RowsEntry):
        _check(name, entry.array, kind, value, of_any_length=True)
        if n_ranks > 1 and kind.shape[0] is not None:
            raise ValueError(
                f"variable '{name}' has {kind.shape[0]} rows by its type, not for {n_ranks} ranks; "
                "make it with shape=(None, ...)"
            )
    elif isinstance(entry, OfRanksEntry):
        _check_number(name, entry, n_ranks)
        lengths = {one.shape[:1] for one in entry.entries if isinstance(one, ArrayEntry)}
        for one in entry.entries:
            _check(name, one, kind, value, of_any_length=len(lengths) > 1)
    else:
        _check(name, entry, kind, value)


def _check_number(name: str, entry: OfRanksEntry, n_ranks: int) -> None:
    n_saved = len(entry.entries)
    # A value that was saved on a single rank fits any number of ranks.
    if isinstance(entry.entries[0], ArrayEntry) and n_saved not in (1, n_ranks):
        raise ValueError(
            f"variable '{name}' is per rank: {n_saved} had values of their own, for which {n_ranks} have no "
            f"place; load it on {n_saved} ranks. Before a save, synk.all_reduce({name}) or "
            f"synk.broadcast({name}) makes it equal on all ranks, which any number can load"
        )


def _check(name: str, entry: Entry, kind: Any, value: Any, of_any_length: bool = False) -> None:
    saved, wanted = _kind_of_entry(entry), _kind_of_value(value)
    if of_any_length and isinstance(entry, ArrayEntry) and isinstance(value, np.ndarray):
        fits = (value.dtype, value.shape[1:], value.ndim) == (entry.dtype, entry.shape[1:], len(entry.shape))
        fits = fits and kind.shape[0] in (None, entry.shape[0])
    else:
        fits = saved == wanted
    if not fits:
        raise ValueError(
            f"variable '{name}' is {wanted}, but {saved} was saved; load it into a variable of that kind"
        )


def _kind_of_entry(entry: Entry) -> str:
    if isinstance(entry, ArrayEntry):
        return f"an array of dtype {entry.dtype} and shape {entry.shape}"
    if isinstance(entry, GeneratorEntry):
        return f"a {shortened(entry.state['bit_generator'])} generator"
    return "a plain value"


def _kind_of_value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    return f"a {type(value.bit_generator).__name__} generator"


def loaded_value(file: BinaryIO, entry: Entry, like: Any) -> Any:
    """Return the value of an entry; a random generator must be of the same kind as ``like``."""
    if isinstance(entry, ArrayEntry):
        return file_format.read_array(file, entry)
    if isinstance(entry, RowsEntry):
        rows = file_format.read_array(file, entry.array)
        return Rows(tuple(np.split(rows, np.cumsum(entry.lengths)[:-1])))
    if isinstance(entry, OfRanksEntry):
        return OfRanks(tuple(loaded_value(file, one, like) for one in entry.entries))
    assert not isinstance(entry, ValueEntry)
    bits = like.bit_generator
    try:
        return generator_of(entry.state, like=bits)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        said = f"not the state of a {type(bits).__name__} generator: {shortened(error)}"
        raise CheckpointCorrupt(said) from None
