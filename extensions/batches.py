"""Choose the rows of every batch of an epoch.

    batches(n_rows, batch_size, seed) -> row indices, or slices -> function(..., batch=...)
    batches(..., prefetch=True) -> {"batch": rows, "next_batch": the following} -> function(..., **those)

Rows are chosen in the script, before they are scattered: the same batches for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from synk.values.checks import checked_count


def batches(
    n_rows: int,
    batch_size: int,
    seed: int | Sequence[int] | None = None,
    *,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch: bool = False,
) -> Iterator[Any]:
    """Yield the selections of one epoch, each row once, as the ``batch`` of a function's calls.

    Parameters
    ----------
    n_rows : int
        Rows in the data set.
    batch_size : int
        Rows in a batch; the last one may have fewer.
    seed : int or sequence of int, optional
        The same seed gives the same order in each run. For another order each epoch, pass
        ``(seed, epoch)``. By default every call has an order of its own.
    shuffle : bool
        Whether to choose rows in random order.
    drop_last : bool
        Whether to leave out a last batch with fewer rows.
    prefetch : bool
        Whether to yield keywords of a call that has the ranks gather the rows of the next batch while
        they compute: ``for keywords in batches(..., prefetch=True): step(*data, **keywords)``.

    Yields
    ------
    int64 ndarray, or slice
        Row numbers, when shuffled. In order, slices: rows next to each other are read in place,
        without a copy.
    dict
        With `prefetch`: ``"batch"`` as above, and ``"next_batch"``, which is None for the last one.

    Raises
    ------
    TypeError
        A number of rows or the seed is not of integers.
    ValueError
        `n_rows` is negative, `batch_size` is not positive, or the seed is negative.

    See Also
    --------
    synk.extensions.fit.fit : chooses batches itself.

    Examples
    --------
    >>> for rows in batches(5, 2, shuffle=False):
    ...     print(rows)
    slice(0, 2, None)
    slice(2, 4, None)
    slice(4, 5, None)
    >>> sorted(np.concatenate(list(batches(5, 2, seed=(0, 1)))).tolist())
    [0, 1, 2, 3, 4]
    """
    n_rows, batch_size = checked_count("n_rows", n_rows, 0), checked_count("batch_size", batch_size)
    stop = n_rows - n_rows % batch_size if drop_last else n_rows
    spans = (slice(start, min(start + batch_size, n_rows)) for start in range(0, stop, batch_size))
    selections: Iterator[np.ndarray | slice] = spans
    if shuffle:
        order = _generator(seed).permutation(n_rows).astype(np.int64, copy=False)
        selections = (order[span] for span in spans)
    return _announced(selections) if prefetch else selections


def _announced(selections: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield each selection with the one that follows, as keywords of a call."""
    for batch, following in pairwise(chain(selections, [None])):
        yield {"batch": batch, "next_batch": following}


def _generator(seed: int | Sequence[int] | None) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        remedy = "pass an integer of at least 0, or a sequence of them such as (seed, epoch)"
        raise type(error)(f"seed={seed!r} does not seed a generator; {remedy}") from error
