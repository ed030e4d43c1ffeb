"""Save shared variables to a file, and load them back on every rank.

    save: variables -> checkpoint_contents -> copies of one moment -> checkpoint_format -> atomic_write
    load: file -> entries, checked against the variables -> arrays, generator_of -> every rank

Ranks hold the same parameters, so rank 0 speaks for all; of random states, each rank's own is kept::

    step = make_train_function(loss, params, inputs, updates.adam)
    ...
    checkpoint.save("model.ckpt", step, {"epoch": epoch, "best": best})
    kept = checkpoint.load("model.ckpt", step)  # kept["epoch"], kept["best"]
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import warnings
from collections.abc import Collection, Mapping
from typing import Any, BinaryIO

import numpy as np

import synk
from synk.extensions import checkpoint_format
from synk.extensions.atomic_write import atomic_write
from synk.extensions.checkpoint_contents import (
    OF_RANK,
    copies,
    copies_of_others,
    named,
    of_each_rank,
    of_rank,
    plain,
    value_of,
)
from synk.extensions.checkpoint_format import (
    ENTRIES_LIMIT,
    ArrayEntry,
    CheckpointCorrupt,
    CheckpointVersion,
    Entry,
    GeneratorEntry,
    ValueEntry,
    shortened,
)
from synk.extensions.checkpoint_generators import generator_of

__all__ = ["CheckpointCorrupt", "CheckpointNames", "CheckpointVersion", "load", "read_values", "save"]

NAMES_SHOWN = 10  # in errors; a file may have any number


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
        copied = copies(variables)
        with contextlib.suppress(
            synk.WorkerDied, synk.SynkTimeout, synk.LinkLost
        ):  # rank 0's are left of a broken run
            copied.update(copies_of_others(variables))
    write(path, copied, kept)


def write(path: str | os.PathLike[str], copied: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write copies of variables' values, which nobody changes meanwhile, and plain values, as `save` does."""
    if both := sorted(copied.keys() & values.keys()):
        raise ValueError(f"{both} name variables as well as values; give the values other names")
    with atomic_write(path) as file:
        checkpoint_format.write(file, {**copied, **values})
        checkpoint_format.read_entries(file)


def load(path: str | os.PathLike[str], variables: Any, *, strict: bool = True) -> dict[str, Any]:
    """Give shared variables the values saved under their names, on every rank.

    Either everything fits or nothing is changed. Calls of other threads wait while the values are given,
    and so do handlers of signals: an interrupt comes before or after.

    Parameters
    ----------
    path : path-like
    variables : as of `save`
        With the names, shapes and dtypes that were saved.
    strict : bool
        Whether to refuse a file that has other variables as well. To load the parameters alone of what a
        training has saved, pass False.

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
    Generators, and what functions say is ``per_rank``, get back the value of each rank if there are as many
    ranks as there were. Otherwise all get that of rank 0, of generators in streams of their own, made from it
    as those at the start were.
    """
    with synk.turn("checkpoint.load"):
        wanted = named(variables)
        present = {name: value_of(variable) for name, variable in wanted.items()}
        own = of_each_rank(variables, wanted)
        others = synk.n_ranks() - 1 if synk.is_open() else 0
    with _opened(path) as file:
        sizes = {name: value.nbytes for name, value in present.items() if isinstance(value, np.ndarray)}
        most = sum(sizes.values()) + ENTRIES_LIMIT * sum(sizes.get(name, 0) for name in own)
        entries = checkpoint_format.read_entries(file, most)
        others_too = {
            name
            for name, entry in entries.items()
            if strict and not (isinstance(entry, ValueEntry) or OF_RANK.sub("", name) in present)
        }
        check_names(others_too | (entries.keys() & present.keys()), present)
        places = {name: name for name in present}
        for name in own:
            if others and of_rank(others, name) in entries and of_rank(others + 1, name) not in entries:
                places |= {of_rank(rank, name): name for rank in range(1, others + 1)}
        for place, name in places.items():
            _check_fit(place, entries[place], present[name])
        checkpoint_format.check_digest(file, longer_than=most)
        loaded = {place: _loaded(file, entries[place], present[name]) for place, name in places.items()}
    with synk.turn("checkpoint.load"):
        assign([(wanted[name], loaded[name]) for name in present])
        for rank in range(1, others + 1):
            for name in own:
                if of_rank(rank, name) in loaded:
                    synk.set_value(rank, own[name], loaded[of_rank(rank, name)])
    return _values(entries)


def read_values(path: str | os.PathLike[str], *, whole: bool = True) -> dict[str, Any]:
    """Return the plain values that were saved in a file, without its variables.

    Parameters
    ----------
    path : path-like
    whole : bool
        Whether to look at the digest of the whole file, which takes time where the arrays are large.

    Raises
    ------
    CheckpointCorrupt, CheckpointVersion, OSError
        As `load`.
    """
    with _opened(path) as file:
        return _values(checkpoint_format.read_entries(file, most=math.inf if whole else 0))


def _values(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {name: entry.value for name, entry in entries.items() if isinstance(entry, ValueEntry)}


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file; a pipe would keep who reads it waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise CheckpointCorrupt(f"{os.fspath(path)!r} is not a regular file; load one that was saved")


def check_names(saved: Collection[str], wanted: Collection[str]) -> None:
    """Raise `CheckpointNames` unless both are the same names."""
    absent, extra = set(wanted) - set(saved), set(saved) - set(wanted)
    if absent or extra:
        raise CheckpointNames(
            f"the checkpoint lacks {_listed(absent)} and also has {_listed(extra)}; "
            "pass the variables that were saved, or strict=False to leave some of the file out"
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


def assign(pairs: list[tuple[Any, Any]]) -> None:
    """Give variables values on every rank; to be called in a `synk.turn`."""
    if not synk.is_open():
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
