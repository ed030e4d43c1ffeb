"""Shared variables that tell a graph the rows of the running slice and of the call, and the communicator.

A script or an Op uses them in a graph; each rank sets them before a slice is computed.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from pytensor import shared
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.c.type import generic

from synk.transport.comm.lone import LoneCommunicator

n_rows = shared(np.asarray(1, dtype="int64"), name="n_rows")
"""0-d int64 shared variable: the rows of the running slice.

Inside a synk function it is the number of rows that the running slice of this rank holds,
or 1 where nothing is scattered. Outside one (a plain ``pytensor.function``) it is 1.
"""

total_rows = shared(np.asarray(1, dtype="int64"), name="total_rows")
"""0-d int64 shared variable: the rows of the call, of all ranks and slices together.

Inside a synk function it is the same on every rank, and 1 where nothing is scattered. Outside one it is 1.
"""

first_row = shared(np.asarray(0, dtype="int64"), name="first_row")
"""0-d int64 shared variable: the number of the running slice's first row among the rows of the call.

The rows of the call are counted in the order of ranks, and of their slices. Where nothing is scattered,
and outside of synk functions, it is 0.
"""

leads = shared(np.asarray(True), name="leads")
"""0-d bool shared variable: whether the running slice is the first one of the call.

It is True in one slice of one rank: of rank 0 unless ``batch_s`` gives it no rows, then of the first rank
that has some. So what is to be counted once in the whole call is ``pt.switch(leads, value, 0)`` on each
rank. Outside of synk functions it is True.
"""

ranks = SharedVariable(type=generic, value=LoneCommunicator(), strict=True, name="ranks")
"""Shared variable: the communicator of the ranks that run a function together.

For Ops that need all ranks in the middle of a graph. Outside a synk function it is that of one rank alone.
"""

OF_THE_RUN = (n_rows, total_rows, first_row, leads, ranks)


def describe(variable: Any) -> str:
    """Return the name of a variable for messages, or its type if it has no name."""
    return repr(variable.name) if variable.name else f"<{variable.type}>"


def copy_of(value: Any) -> Any:
    """Return a copy of the value of a shared variable."""
    return np.array(value) if isinstance(value, np.ndarray) else copy.deepcopy(value)
