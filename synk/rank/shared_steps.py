"""What every rank does with the steps that are collectives on shared variables.

Rank.run -> HANDLERS[type(step)](rank, step) -> RankVariables, Communicator
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from synk.arrays.variables import copy_of, describe
from synk.comm import SharedArrays
from synk.rank.shards import rows_of
from synk.values import messages
from synk.values.errors import NonFinite
from synk.values.rows import Rows

if TYPE_CHECKING:
    from synk.rank.worker import Rank


# --- values that the master hands out ------------------------------------------------------------------


def assign(rank: Rank, step: messages.Assign) -> None:
    """Take the rows that the master hands out."""
    indices = None if step.indices is None else rank.segments.array(step.indices)
    for variable, ref, spans in zip(step.variables, step.arrays, step.spans, strict=True):
        span = spans[rank.rank]
        if span is None:
            continue
        if ref is None:
            rank.variables.take_stored(variable)
            continue
        array = rank.segments.array(ref)
        rows = rows_of(span, indices)
        shape = (len(rows), *array.shape[1:]) if array.ndim else ()
        rank.variables.fill(variable, shape, partial(copy_rows, array, rows))


def copy_rows(array: Any, rows: Rows, out: Any) -> None:
    """Copy rows of ``array``, or a 0-d array whole, to where they are to be."""
    if rows.indices is None:
        out[...] = array[rows.start : rows.stop] if array.ndim else array
    else:
        # Checked on the master, so nothing is clipped; but with "raise", NumPy copies them twice.
        np.take(array, rows.indices[rows.start : rows.stop], axis=0, out=out, mode="clip")


# --- what the ranks have -------------------------------------------------------------------------------


def broadcast(rank: Rank, step: messages.Broadcast) -> None:
    """Take rank 0's values."""
    variables = rank.variables
    homes = [_homes_of_rank_0(rank, variable) for variable in step.variables]
    with rank.communicator.at_once("broadcast", "sum", homes, shapes=False):
        for variable, known in zip(step.variables, homes, strict=True):
            # Where it has a home, the value of another rank does not matter.
            array = rank.value(variable) if known is None else known[rank.rank]
            result = rank.communicator.broadcast(array, homes=known)
            if rank.rank > 0:
                variables.assign(variable, result)


def _homes_of_rank_0(rank: Rank, variable: int) -> SharedArrays | None:
    """Return the homes of a variable if rank 0's value is, or can be brought, to that of this rank."""
    if rank.rank == 0:
        return rank.variables.shared_arrays(variable)
    homes = rank.variables.storage(variable)
    return homes if homes is not None and homes[0].shape == homes[rank.rank].shape else None


def all_reduce(rank: Rank, step: messages.AllReduce) -> None:
    """Combine the values of all ranks, on all."""
    first, *others = of_all = [rank.variables.shared_arrays(variable) for variable in step.variables]
    if not others:  # of every training step: nothing is saved by meeting once
        _all_reduce(rank, step.variables[0], first, step.op)
        return
    with rank.communicator.at_once("all_reduce", step.op, of_all):
        for variable, homes in zip(step.variables, of_all, strict=True):
            _all_reduce(rank, variable, homes, step.op)


def _all_reduce(rank: Rank, variable: int, homes: SharedArrays | None, op: str) -> None:
    communicator = rank.communicator
    if homes is not None:
        communicator.all_reduce(homes[rank.rank], op, homes)
        return
    parted = None if rank.overlap is None else rank.overlap.take(variable)
    value = rank.value(variable)
    result = communicator.all_reduce(value, op) if parted is None else parted.finish(value)
    rank.variables.assign(variable, result)


def reduce(rank: Rank, step: messages.Reduce) -> list[Any] | None:
    """Combine the values of all ranks, on rank 0; return the results if they are not put in place."""
    results = []
    of_all = [rank.variables.shared_arrays(variable) for variable in step.variables]
    with rank.communicator.at_once("reduce in place" if step.in_place else "reduce", step.op, of_all):
        for variable, homes in zip(step.variables, of_all, strict=True):
            value = rank.value(variable)
            result = rank.communicator.reduce(value, step.op, homes=homes, in_place=step.in_place)
            if rank.rank == 0 and step.in_place:
                rank.variables.assign(variable, result)
            elif rank.rank == 0:
                results.append(rank.device.to_host(result))
    return None if rank.rank > 0 or step.in_place else results


def all_gather(rank: Rank, step: messages.AllGather) -> None:
    """Join the values of all ranks, on all."""
    homes = [rank.variables.shared_arrays(variable) for variable in step.variables]
    values = [rank.value(variable) for variable in step.variables]
    with rank.communicator.at_once("all_gather", "sum", homes, shapes=False):
        joined = [
            rank.communicator.all_gather(value, known, _module(rank, value).concatenate)
            for value, known in zip(values, homes, strict=True)
        ]
    for variable, result in zip(step.variables, joined, strict=True):
        rank.variables.assign(variable, result)


def gather(rank: Rank, step: messages.Gather) -> list[Any] | None:
    """Return the values of all ranks, joined, on rank 0."""
    read = partial(joined_or_copied, stacked=step.nd_up == 1, to_host=rank.device.to_host)
    homes = [rank.variables.shared_arrays(variable) for variable in step.variables]
    with rank.communicator.at_once("gather", "sum", homes, shapes=False):
        results = [
            rank.communicator.gather(rank.value(variable), homes=known, read=read)
            for variable, known in zip(step.variables, homes, strict=True)
        ]
    return results if rank.rank == 0 else None


def joined_or_copied(arrays: Sequence[Any], stacked: bool, to_host: Callable[[Any], Any]) -> Any:
    """Return arrays joined along axis 0, or stacked on a new one; a list of copies where that cannot be.

    All of it on the host, where memory is less dear than on a device.
    """
    arrays = [to_host(array) for array in arrays]
    start = 0 if stacked else 1
    if any(array.shape[start:] != arrays[0].shape[start:] for array in arrays[1:]):
        return [array.copy() for array in arrays]
    return np.stack(arrays) if stacked else np.concatenate(arrays)


def fetch(rank: Rank, step: messages.Fetch) -> list[Any] | None:
    """Return the values of one rank: on rank 0 where they can be read from there, else on that rank."""
    asked = step.rank in (None, rank.rank)
    read = dict(zip(step.variables, step.read, strict=True)) if step.read else {}
    homes = {
        variable: rank.variables.shared_arrays(variable) for variable in step.variables if read.get(variable)
    }
    with rank.communicator.at_once("gather", "sum", list(homes.values()), shapes=False):
        gathered = {
            variable: rank.communicator.gather(
                rank.value(variable), homes=known, read=_only_copied, only=step.rank
            )
            for variable, known in homes.items()
        }
    # A copy even where it is sent: that happens after all steps, which may write to it.
    return [
        gathered[variable] if variable in homes else _own_copy(rank, variable) if asked else None
        for variable in step.variables
    ]


def _only_copied(arrays: Sequence[Any]) -> Any:
    return arrays[0].copy()


def _own_copy(rank: Rank, variable: int) -> Any:
    value = rank.variables.on_host(variable)
    return copy_of(value) if value is rank.variables.value(variable) else value


def shapes(rank: Rank, step: messages.Shapes) -> list[tuple[int, ...]]:
    """Return the shapes of the values."""
    return [rank.variables.value(variable).shape for variable in step.variables]


def check_finite(rank: Rank, step: messages.CheckFinite) -> None:
    """Raise if a value holds NaN or infinities."""
    bad = []
    for variable in step.variables:
        value = rank.variables.value(variable)
        xp = _module(rank, value)
        count = value.size - _number(rank, xp.count_nonzero(xp.isfinite(value)))
        if count:
            n_nan = _number(rank, xp.count_nonzero(xp.isnan(value)))
            said = f"{count} of {value.size} values ({n_nan} NaN)"
            bad.append(f"{said} of {describe(rank.variables[variable])}")
    if bad:
        raise NonFinite(f"not finite on rank {rank.rank}: {', '.join(bad)}")


def _module(rank: Rank, array: Any) -> Any:
    """Return the module that computes with an array where it is."""
    return np if isinstance(array, np.ndarray) else rank.device.xp


def _number(rank: Rank, count: Any) -> int:
    """Return a count that was made where its array is."""
    return int(rank.device.to_host(count))


HANDLERS: dict[type, Callable[[Rank, Any], Any]] = {
    messages.Assign: assign,
    messages.Broadcast: broadcast,
    messages.AllReduce: all_reduce,
    messages.Reduce: reduce,
    messages.AllGather: all_gather,
    messages.Gather: gather,
    messages.Fetch: fetch,
    messages.Shapes: shapes,
    messages.CheckFinite: check_finite,
}
