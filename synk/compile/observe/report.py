"""Report a profile as a table, as plain data and as a trace for a viewer.

Profile -> Report -> str, rows, save_trace
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from synk.values.atomic_write import write_json
from synk.values.notebooks import preformatted

TOP = 15  # rows of each table
NANOSECONDS = 1e-9
MAX_NAME = 48  # characters


class Slice(NamedTuple):
    """A run of a node, or a call, from ``begin`` to ``end`` in nanoseconds."""

    name: str
    kind: str
    begin: int
    end: int
    outputs: tuple  # dtype and shape of each


class Record:
    """The runs so far of one node: node number ``index`` of its program, built at the line ``built``.

    ``count(inputs, results)`` returns floating-point operations. ``inside`` lists the nodes of a region, each
    with the line that built it.
    """

    def __init__(
        self,
        program: str,
        op: str,
        node: str,
        index: int,
        built: str,
        count: Callable | None,
        inside: Sequence[tuple[str, str]] = (),
    ):
        self.inside = inside
        self.program, self.op, self.node, self.index, self.built = program, op, node, index, built
        self.runs, self.nanoseconds, self.flops = 0, 0, 0
        self.outputs: tuple = ()  # dtype and shape of each, in the last run
        self._count = count

    def add(self, nanoseconds: int, inputs: Sequence[Any], results: Sequence[Any], outputs: tuple) -> None:
        """Add the figures of one run."""
        self.runs += 1
        self.nanoseconds += nanoseconds
        self.outputs = outputs
        if self._count is not None:
            self.flops += self._count(inputs, results)


class Report:
    """A finished profile; ``str`` of it is a table.

    Attributes
    ----------
    n_calls : int
    seconds : float
        Of all calls together; of nodes and collectives alone if no call was counted.
    rows : list of dict
        One per node, the longest first: program, index, op, node, built, runs, seconds, share (of
        ``seconds``), flops (of all runs), outputs (dtypes and shapes of the last run), inside (the Ops of a
        region, and the line of each).
    ops : list of dict
        One per Op class: op, nodes, runs, seconds, share, flops.
    collectives : list of dict
        One per collective, as ``ops``.
    peak_bytes : int
        The most bytes, at any time, of living arrays that nodes had made.
    peak_at : str
        The node after which the peak was reached.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        records: Sequence[Record],
        collectives: Sequence[Record],
        calls: Sequence[Slice],
        slices: Sequence[Slice],
        memory: Any,
    ):
        self.name, self.rank = name, rank
        self.n_calls = len(calls)
        self.node_seconds = _seconds(records)
        self.collective_seconds = _seconds(collectives)
        inside = self.node_seconds + self.collective_seconds
        self.seconds = sum(call.end - call.begin for call in calls) * NANOSECONDS if calls else inside
        self.peak_bytes, self.peak_at = memory.peak, memory.at
        by_time = sorted(records, key=lambda record: -record.nanoseconds)
        self.rows = [self._row(record) for record in by_time]
        self.ops = self._groups(records)
        self.collectives = self._groups(collectives)
        self._slices = [*calls, *slices]

    @property
    def outside_seconds(self) -> float:
        """Time of calls in neither nodes nor collectives: staging, waiting for the other ranks, results."""
        return self.seconds - self.node_seconds - self.collective_seconds

    def _row(self, record: Record) -> dict[str, Any]:
        names = {key: getattr(record, key) for key in ("program", "index", "op", "node", "built", "inside")}
        return names | self._figures([record]) | {"outputs": _written(record.outputs)}

    def _groups(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        by_op: dict[str, list[Record]] = {}
        for record in records:
            by_op.setdefault(record.op, []).append(record)
        groups = [{"op": op, "nodes": len(those), **self._figures(those)} for op, those in by_op.items()]
        return sorted(groups, key=lambda group: -group["seconds"])

    def _figures(self, records: Sequence[Record]) -> dict[str, Any]:
        seconds = _seconds(records)
        return {
            "runs": sum(record.runs for record in records),
            "seconds": seconds,
            "share": seconds / self.seconds if self.seconds else 0.0,
            "flops": sum(record.flops for record in records),
        }

    def __str__(self) -> str:
        return "\n".join([*self._summary(), "", *self._op_table(), "", *self._node_table()])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return preformatted(str(self))

    def _summary(self) -> list[str]:
        calls = max(self.n_calls, 1)
        parts = [
            f"{what} {1e3 * seconds / calls:.3f} ms ({seconds / self.seconds if self.seconds else 0:.0%})"
            for what, seconds in (
                ("nodes", self.node_seconds),
                ("collectives", self.collective_seconds),
                ("outside", self.outside_seconds),
            )
        ]
        lines = [
            f"Profile of {repr(self.name) if self.name else 'a program'}, rank {self.rank}: "
            f"{self.n_calls or 'no'} calls, {1e3 * self.seconds / calls:.3f} ms each",
            f"  {', '.join(parts)}",
        ]
        if self.peak_bytes:
            lines.append(f"  peak memory {_bytes(self.peak_bytes)}, at {_short(self.peak_at)}")
        return lines

    def _op_table(self) -> list[str]:
        rows = [
            (group["op"], str(group["nodes"]), *self._cells(group))
            for group in [*self.ops, *self.collectives]
        ]
        return table(("Op", "nodes", *FIGURES), rows[:TOP], rest=len(rows) - TOP)

    def _node_table(self) -> list[str]:
        rows = []
        for row in self.rows[:TOP]:
            cells = self._cells(row)
            name, built = _short(row["node"]), os.path.basename(row["built"])
            rows.append((name, str(row["index"]), *cells, ", ".join(row["outputs"]), built))
            inside, blank = row["inside"], ("",) * (len(cells) + 2)
            rows += [(f"  {_short(op)}", *blank, os.path.basename(at)) for op, at in inside[:TOP]]
            if inside[TOP:]:
                rows.append((f"  ... and {len(inside) - TOP} more", *blank, ""))
        heads = ("Node", "number", *FIGURES, "outputs", "built at")
        return table(heads, rows, left=(-2, -1), rest=len(self.rows) - TOP)

    def _cells(self, row: dict[str, Any]) -> tuple[str, ...]:
        seconds, runs = row["seconds"], row["runs"]
        speed = f"{row['flops'] / seconds * 1e-9:.1f}" if row["flops"] and seconds else ""
        return (
            str(runs),
            f"{1e3 * seconds / max(self.n_calls, 1):.3f}",
            f"{row['share']:.1%}",
            f"{1e6 * seconds / runs:.1f}",
            speed,
        )

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write all runs and calls of the profile as JSON for chrome://tracing or https://ui.perfetto.dev."""
        begun = min((entry.begin for entry in self._slices), default=0)
        events = [self._event(entry, begun) for entry in self._slices]
        process = {"name": "process_name", "ph": "M", "pid": self.rank, "args": {"name": f"rank {self.rank}"}}
        write_json(path, {"traceEvents": [process, *events], "displayTimeUnit": "ms"})

    def _event(self, entry: Slice, begun: int) -> dict[str, Any]:
        return {
            "name": entry.name,
            "cat": entry.kind,
            "ph": "X",
            "ts": (entry.begin - begun) / 1e3,  # microseconds
            "dur": (entry.end - entry.begin) / 1e3,
            "pid": self.rank,
            "tid": 0,
            "args": {"outputs": _written(entry.outputs)},
        }


FIGURES = ("runs", "ms/call", "share", "µs/run", "GFLOP/s")


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], left: Iterable[int] = (), rest: int = 0
) -> list[str]:
    """Return the lines of a table; ``rest`` more rows, which are not shown, are counted in a last line.

    Columns are aligned right, but for the first one and those numbered in ``left``.
    """
    shown = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    flush = {0, *(len(heads) + k if k < 0 else k for k in left)}
    places = [("<" if column in flush else ">") + str(width) for column, width in enumerate(widths)]
    lines = ["  ".join(map(format, row, places)).rstrip() for row in shown]
    return [*lines, f"... and {rest} more"] if rest > 0 else lines


def _seconds(records: Iterable[Record]) -> float:
    return sum(record.nanoseconds for record in records) * NANOSECONDS


def _written(outputs: tuple) -> list[str]:
    return [f"{dtype} {shape}" for dtype, shape in outputs]


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def _bytes(count: int) -> str:
    return f"{count / 2**20:.2f} MiB" if count >= 2**20 else f"{count / 2**10:.2f} KiB"
