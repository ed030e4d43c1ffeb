"""Find where the values of a Scan lie.

A *trace* is an array with a row per step, after ``reach`` rows of initial values. Step i reads row
``i + offset`` for each offset in ``reads`` and writes row ``i + offset`` for each in ``writes``. An array
with fewer rows than the run needs is used round and round: all row numbers are modulo its length.
An *untraced* state has no array; each step takes what the step before returned.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pytensor.scan.op import Scan


class Trace(NamedTuple):
    """The rows of one array that a step reads and writes."""

    reach: int  # rows of initial values
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def traces_of(op: Scan) -> list[Trace]:
    """Return the traces in the order of the Scan's outputs: mit-mot, mit-sot, sit-sot, nit-sot."""
    info = op.info
    single = ((0,),)
    reads = info.mit_mot_in_slices + info.mit_sot_in_slices + info.sit_sot_in_slices
    writes = info.mit_mot_out_slices + single * (info.n_mit_sot + info.n_sit_sot)
    return [*map(_trace, reads, writes), *[Trace(0, (), (0,))] * info.n_nit_sot]


def _trace(taps_in: Sequence[int], taps_out: Sequence[int]) -> Trace:
    """Return a trace whose rows count from the oldest one; PyTensor's taps count from the step's row."""
    reach = -min(0, *taps_in)
    return Trace(reach, tuple(t + reach for t in taps_in), tuple(t + reach for t in taps_out))
