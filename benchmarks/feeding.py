"""Measure how fast rows of a data set reach a GPU, as a fraction of a plain copy from page-locked memory.

    python benchmarks/feeding.py

Needs an NVIDIA GPU and CuPy, and has not run on one yet. Every round measures each way once, in turn; what
counts is the ratio of two times of one round. The function looks at the shape of its rows only, so the
measurement is of the transfer of rows, calls included. The target is 0.8 for batches that are announced.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt

import synk
from synk.tools.bench.how_busy import describe
from synk.tools.bench.pairs import compare, in_bytes

COPY = "plain copy, page-locked"
TARGET = 0.8
N_BATCHES = 8  # a time; the data set is as long


def main() -> None:
    options = parse()
    try:
        synk.fork(1, device="cuda")
    except synk.CudaUnavailable as error:
        raise SystemExit(f"this benchmark needs a GPU, so nothing was measured: {error}") from None
    print("\n".join(describe().lines()))
    print(
        f"\n{N_BATCHES} batches of {in_bytes(options.rows * options.row_bytes)}, {options.rows} rows each\n"
    )
    found = measure(options)
    for name, rate, ratio, verdict in found["rows"]:
        print(f"{name:26} {rate:>7} GB/s   × {ratio}  {verdict}")
    if options.to:
        options.to.write_text(json.dumps(found))
    synk.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=256, help="of a batch")
    parser.add_argument("--row-bytes", type=int, default=3 * 224 * 224, help="as an image, unless told")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further round after these")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table there, as JSON")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return a row for each way: its rate, and the ratio to the copy with its quartiles."""
    import cupy

    end = time.monotonic() + 0.8 * options.seconds
    n_rows, row_bytes = options.rows, options.row_bytes
    data = synk.data(shape=(N_BATCHES * n_rows, row_bytes), dtype="uint8")
    data[:] = np.random.default_rng(0).integers(0, 256, row_bytes, "uint8")
    data.data[:, 0] = np.arange(len(data)) % 251  # so that rows can be told apart
    candidates = {COPY: copies(cupy, data[:n_rows]), **ways(cupy, data, n_rows)}
    comparison = compare(candidates, options.rounds, seconds=end - time.monotonic())
    rows, announced = [], []
    for name in candidates:
        rate = N_BATCHES * n_rows * row_bytes / comparison.median(name) / 1e9
        low, median, high = (1 / ratio for ratio in reversed(comparison.ratio(name)))
        met = "yes" if median >= TARGET else "no"
        rows.append([name, f"{rate:.1f}", f"{median:.2f} ({low:.2f} to {high:.2f})", ""])
        if "announced" in name:
            rows[-1][-1] = f"≥ {TARGET}: {met}"
            announced.append((f"{name}: {median:.2f}", met))
    return {
        "title": "Feeding",
        "note": f"{N_BATCHES} batches of {in_bytes(n_rows * row_bytes)}, {n_rows} rows each.",
        "columns": ["way", "GB/s", f"× rate of {COPY} (quartiles)", "asked"],
        "rows": rows,
        "measured": "; ".join(told for told, _ in announced),
        "met": min(met for _, met in announced),  # "no" comes before "yes"
    }


def copies(cupy: Any, rows: Any) -> Callable[[], None]:
    """Return a function that copies as many bytes by memcpyAsync alone."""
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
    kind = runtime.memcpyHostToDevice
    memory = cupy.cuda.PinnedMemory(rows.nbytes)
    np.frombuffer(cupy.cuda.PinnedMemoryPointer(memory, 0), "uint8", rows.nbytes)[:] = rows.ravel()
    there = cupy.empty(rows.nbytes, "uint8")

    def run() -> None:
        for _ in range(N_BATCHES):
            runtime.memcpyAsync(there.data.ptr, memory.ptr, rows.nbytes, kind, stream.ptr)
        stream.synchronize()

    return run


def ways(cupy: Any, data: synk.Data, n_rows: int) -> dict[str, Callable[[], None]]:
    """Return the ways of rows through calls, each checked once."""
    x = pt.matrix("x", dtype="uint8")
    count, total = synk.function([x], (x.shape[0], "sum")), synk.function([x], (x.sum(dtype="int64"), "sum"))
    order = np.random.default_rng(1).permutation(len(data))
    shuffled = list(order.reshape(N_BATCHES, n_rows))
    in_order = [slice(start, start + n_rows) for start in range(0, len(data), n_rows)]
    for batch in (shuffled[0], in_order[0]):
        if total(data, batch=batch) != int(np.array(data)[batch].sum(dtype="int64")):
            raise SystemExit("rows that came to the GPU are not those of the data set")
    synchronize = cupy.cuda.runtime.deviceSynchronize
    return {
        "batch=slice": partial(run, count, data, in_order, False, synchronize),
        "batch=slice, announced": partial(run, count, data, in_order, True, synchronize),
        "batch=indices": partial(run, count, data, shuffled, False, synchronize),
        "batch=indices, announced": partial(run, count, data, shuffled, True, synchronize),
    }


def run(
    function: Any, data: synk.Data, batches: list[Any], announced: bool, synchronize: Callable[[], None]
) -> None:
    """Call a function for every batch; return when all rows are on the GPU."""
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        function(data, batch=batch, next_batch=following if announced else None)
    synchronize()


if __name__ == "__main__":
    main()
