"""Save shared variables to a file, and load them back on every rank.

    save: variables -> contents -> copies of one moment -> file_format -> atomic_write
    load: file -> entries, checked against the variables -> values -> every rank

Rank 0 speaks for all where ranks have equal values; of what is per rank, each rank's own is kept::

    step = make_train_function(loss, params, inputs, updates.adam)
    ...
    checkpoint.save("model.ckpt", step, {"epoch": epoch, "best": best})
    kept = checkpoint.load("model.ckpt", step)  # kept["epoch"], kept["best"]
"""

from __future__ import annotations

import math
import os
import stat
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

import synk
from synk.extensions.checkpoint import file_format
from synk.extensions.checkpoint.contents import (
    causes,
    causes_text,
    copies,
    copies_of_ranks,
    named,
    plain,
    value_of,
)
from synk.extensions.checkpoint.entries import check_fit, loaded_value
from synk.extensions.checkpoint.file_format import (
    CheckpointCorrupt,
    CheckpointVersion,
    Entry,
    OfRanks,
    Rows,
    ValueEntry,
    shortened,
)
from synk.values.atomic_write import atomic_write

__all__ = ["CheckpointCorrupt", "CheckpointNames", "CheckpointVersion", "load", "read_values", "save"]

NAMES_SHOWN = 10  # in errors; a file may have any number


class CheckpointNames(synk.SynkError, KeyError):
    """A checkpoint holds other names than those asked for."""

    __str__ = Exception.__str__  # KeyError's would quote the sentence


def save(path: str | os.PathLike[str], variables: Any, values: Mapping[str, Any] | None = None) -> None:
    """Write the values of shared variables on all ranks to a file, and plain values beside them.

    Of what `synk.per_rank` names, and of random states, each rank's own is written, of the rest rank 0's. All
    are of one moment: calls of other threads wait while they are copied, which takes the memory of one more
    copy. The file is replaced as a whole, once what was written has been read again: if anything fails, the
    old one stays.

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
        A variable has no name, or two things have the same; or it was per rank in a run that is closed, of
        which rank 0's value is left.
    WorkerDied, SynkTimeout, LinkLost
        The run is broken, and a variable is per rank. Others can be saved, random states as rank 0 has them.
    SynkStateError
        This process is not the master, or this is called in the middle of a call, by a signal handler.
    OSError
        From the file system.

    See Also
    --------
    synk.extensions.checkpoint.load : gives them back.
    synk.extensions.fit.Checkpoints : saves the whole training.

    Examples
    --------
    >>> w = pytensor.shared(np.arange(3.0), name="w")
    >>> checkpoint.save("run.synk", [w], {"epoch": 3})
    >>> w.set_value(np.zeros(3))
    >>> checkpoint.load("run.synk", [w])
    {'epoch': 3}
    >>> w.get_value()
    array([0., 1., 2.])
    """
    kept = plain(values or {})
    with synk.turn("checkpoint.save"):
        copied = copies(variables)
        try:
            copied |= copies_of_ranks(variables, copied)
        except (synk.WorkerDied, synk.SynkTimeout, synk.LinkLost) as lost:
            if found := causes(variables):
                lost.add_note(f"{causes_text(found)}; the other variables can be saved")
                raise
    write(path, copied, kept)


def write(path: str | os.PathLike[str], copied: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write copies of variables' values, which nobody changes meanwhile, and plain values, as `save` does."""
    if both := sorted(copied.keys() & values.keys()):
        raise ValueError(f"{both} name variables as well as values; give the values other names")
    with atomic_write(path) as file:
        file_format.write(file, {**copied, **values})
        file_format.read_entries(file)


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
        A shape, a dtype or the kind of a generator differs; a variable that was per rank on several, other
        than by its rows, is to be loaded on another number; or names as for `save`.
    TypeError, SynkStateError
        As `save`.
    OSError
        From the file system.

    See Also
    --------
    synk.extensions.checkpoint.save : writes the file.

    Notes
    -----
    What was per rank is given back to each rank if there are as many as there were. On another number, rows
    are dealt out again, as by `synk.scatter`, and generators go on in streams that are made from that of
    rank 0, as those at the start were.

    Examples
    --------
    >>> w = pytensor.shared(np.arange(3.0), name="w")
    >>> b = pytensor.shared(np.ones(1), name="b")
    >>> checkpoint.save("both.synk", [w, b])
    >>> checkpoint.load("both.synk", [w], strict=False)  # one of the two
    {}
    """
    with synk.turn("checkpoint.load"):
        wanted = named(variables)
        present = {name: value_of(variable) for name, variable in wanted.items()}
        n_ranks = synk.n_ranks() if synk.is_open() else 1
    with _opened(path) as file:
        most = n_ranks * sum(value.nbytes for value in present.values() if isinstance(value, np.ndarray))
        entries = file_format.read_entries(file, most, wanted)
        saved = {name for name, entry in entries.items() if not isinstance(entry, ValueEntry)}
        check_names((saved if strict else set()) | (entries.keys() & present.keys()), present)
        for name, value in present.items():
            check_fit(name, entries[name], wanted[name].type, value, n_ranks)
        file_format.check_digest(file, longer_than=most)
        loaded = {name: loaded_value(file, entries[name], like=value) for name, value in present.items()}
    with synk.turn("checkpoint.load"):
        assign([(wanted[name], value) for name, value in loaded.items()])
    return _values(entries)


def read_values(path: str | os.PathLike[str], *, whole: bool = True) -> dict[str, Any]:
    """Return the plain values that were saved in a file, without its variables.

    Parameters
    ----------
    path : path-like
    whole : bool
        Whether to look at the digest of the whole file, which takes time where the arrays are large.

    Returns
    -------
    dict of str to plain value

    Raises
    ------
    CheckpointCorrupt, CheckpointVersion, OSError
        As `load`.

    See Also
    --------
    synk.extensions.checkpoint.load : gives variables their values, too.

    Examples
    --------
    >>> w = pytensor.shared(np.arange(3.0), name="w")
    >>> checkpoint.save("run.synk", [w], {"epoch": 3})
    >>> checkpoint.read_values("run.synk")
    {'epoch': 3}
    """
    with _opened(path) as file:
        return _values(file_format.read_entries(file, most=math.inf if whole else 0))


def _values(entries: Mapping[str, Entry]) -> dict[str, Any]:
    return {name: entry.value for name, entry in entries.items() if isinstance(entry, ValueEntry)}


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; anything else, such as a pipe, is refused, as it might block."""
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


def assign(pairs: list[tuple[Any, Any]]) -> None:
    """Set variables to their loaded values on every rank; to be called in a `synk.turn`."""
    whole = [(variable, _of_one(value)) for variable, value in pairs]
    if not synk.is_open():
        for variable, value in whole:
            variable.set_value(value, borrow=True)
        return
    _give_all([pair for pair, (_, value) in zip(whole, pairs, strict=True) if not isinstance(value, Rows)])
    for variable, value in pairs:
        if isinstance(value, Rows):
            _deal(variable, value.parts)
        elif isinstance(value, OfRanks) and len(value.values) == synk.n_ranks():
            for rank, own in enumerate(value.values[1:], 1):
                synk.set_value(rank, variable, own)


def _of_one(value: Any) -> Any:
    """Return the value for a single process, which rank 0 gets first as well."""
    if isinstance(value, Rows):
        return np.concatenate(value.parts)
    return value.values[0] if isinstance(value, OfRanks) else value


def _deal(variable: Any, parts: Sequence[np.ndarray]) -> None:
    """Give each rank the part of the rows that it had; with another number of ranks, split them evenly."""
    synk.scatter(variable, np.concatenate(parts))
    if len(parts) == synk.n_ranks() and synk.get_lengths(variable) != list(map(len, parts)):
        for rank, part in enumerate(parts):
            synk.set_value(rank, variable, part)


def _give_all(pairs: list[tuple[Any, Any]]) -> None:
    """Set variables to the same value on all ranks; each rank's random states are derived from it."""
    tensors = [pair for pair in pairs if isinstance(pair[1], np.ndarray)]
    generators = [pair for pair in pairs if not isinstance(pair[1], np.ndarray)]
    # This comes first, even without tensors: if the run is broken, it raises before anything has changed.
    synk.broadcast([variable for variable, _ in tensors], [value for _, value in tensors])
    with warnings.catch_warnings():
        # It says that the other ranks keep their values; the broadcast below sees to that.
        warnings.simplefilter("ignore", synk.SynkWarning)
        for variable, value in generators:
            variable.set_value(value, borrow=True)
    synk.broadcast([variable for variable, _ in generators])
