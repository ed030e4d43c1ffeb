"""Count the launches and bytes of a training step on a GPU, without having one, beside torch eager.

    python benchmarks/gpu_traffic.py resnet                      ResNet-50, 224 x 224, batch 256, bfloat16
    python benchmarks/gpu_traffic.py resnet --batch 8 --launches   every launch, in order
    python benchmarks/gpu_traffic.py mlp                         the perceptron of gpu_mlp_in_synk.py

    step on `hollow_cupy` -> launches -> kinds -> bytes / (0.8 * 4.8 TB/s), or FLOPs / efficiency if more

A lower bound, not a measurement: kernels are taken to move each array once, at four fifths of an H200's
bandwidth, convolutions to reach ``--efficiency`` of its 989 TFLOP/s in bfloat16. Torch's part is derived from
the same shapes, layer by layer, with channels last: its batch norm reads twice and writes once, as here; its
rectifiers, sums of residual blocks and sums of gradients are kernels of their own (`of_torch`).
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# Before NumPy: it holds the libraries to one thread.
import machine  # noqa: F401
import mlp
import numpy as np
import resnet_data as data

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "demos" / "resnet")]

BANDWIDTH = 0.8 * 4.8e12  # bytes a second
PEAK = 989e12  # FLOPs a second, bfloat16
CONVOLUTIONS = ("forward", "input gradient", "weight gradient")
NORMS = ("moments", "statistics", "normalise", "products", "totals")
RESIDUALS = ("normalise_and_add", "masked_products")
CASTS = {"astype", "setitem", "copy", "ascontiguousarray"}


class Row(NamedTuple):
    """The sum of the launches of one kind."""

    kind: str
    launches: int
    n_bytes: float
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("net", choices=("resnet", "mlp"))
    add("--depth", type=int, choices=(18, 34, 50), default=50)
    add("--size", type=int, default=224)
    add("--batch", type=int, default=256)
    add("--efficiency", type=float, default=0.5, help="of convolutions")
    add("--launches", action="store_true", help="print them all")
    options = parser.parse_args()
    made = of_resnet(options) if options.net == "resnet" else of_mlp(options)
    if options.launches:
        for launch in made:
            arrays = " ".join(f"{dtype}{list(shape)}" for dtype, shape in launch.arrays)
            print(f"{kind_of(launch):12} {launch.n_bytes / 1e6:9.2f} MB  {launch.name[:24]:24} {arrays}")
    print("synk")
    show(summed(made, options.efficiency))
    if options.net == "resnet":
        print("torch eager, derived")
        show(of_torch(made, options.efficiency))


# --- launches ----------------------------------------------------------------------------------------


def of_resnet(options: argparse.Namespace) -> list:
    """Return the launches of one step of ResNet."""
    import hollow_cupy
    import pytensor.tensor as pt

    import synk
    from synk.extensions import train, updates

    with hollow_cupy.installed() as log:
        import model

        synk.fork(1, device="cuda", precision="bfloat16")
        shape = (options.batch, 3, options.size, options.size)
        x, y = pt.tensor("x", shape=(None, *shape[1:]), dtype="float32"), pt.lvector("y")
        net = model.build(x, y, options.depth, data.N_CLASSES, seed=0)
        rule = {"learning_rate": data.RATE, "momentum": data.MOMENTUM, "updates": net.updates}
        step = train.make_train_function(
            net.train_loss, net.params.values(), [x, y], updates.momentum, **rule
        )
        return of_step(
            log, step, synk.data(np.zeros(shape, "float32")), synk.data(np.zeros(options.batch, "int64"))
        )


def of_mlp(options: argparse.Namespace) -> list:
    """Return the launches of one step of the perceptron."""
    import hollow_cupy

    import synk
    from synk import ops
    from synk.extensions import train, updates

    with hollow_cupy.installed() as log:
        synk.fork(1, device="cuda", precision="tf32")
        net = mlp.network(mlp.first_layers(), ops.relu, ops.softmax_cross_entropy)
        rule = {"learning_rate": mlp.RATE, "momentum": mlp.MOMENTUM}
        step = train.make_train_function(
            net.loss, net.params, [net.x, net.y], updates.nesterov_momentum, **rule
        )
        return of_step(log, step, *map(synk.data, mlp.images(options.batch)))


def of_step(log, step, *rows) -> list:
    """Return the launches of the second step: the first compiles."""
    import synk

    step(*rows)
    log.launches.clear()
    step(*rows)
    made = [*log.launches]
    synk.close()
    return made


def kind_of(launch) -> str:
    """Return the kind of a launch."""
    if launch.name in CONVOLUTIONS:
        return "convolution"
    if launch.name in RESIDUALS:
        return "norm and sum"
    if "Norm" in launch.node or "Residual" in launch.node or launch.name in NORMS:
        return "batch norm"
    if "CrossEntropy" in launch.node:
        return "loss"
    if "Pool" in launch.node:
        return "pooling"
    if launch.name == "product":
        return launch.name
    if launch.program == "update":
        return "update"
    if launch.name in CASTS:
        dtypes = {dtype for dtype, _ in launch.arrays}
        return "cast" if len(dtypes) > 1 else "copy"
    return "reduction" if launch.name in ("sum", "max", "min") else "elementwise"


def summed(made: Iterable, efficiency: float) -> list[Row]:
    """Return a row for each kind, the slowest first."""
    found = defaultdict(list)
    for launch in made:
        found[kind_of(launch)].append(launch)
    rows = [
        Row(
            kind,
            len(some),
            sum(launch.n_bytes for launch in some),
            sum(seconds(launch.n_bytes, launch.flops, efficiency) for launch in some),
        )
        for kind, some in found.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def seconds(n_bytes: float, flops: float, efficiency: float) -> float:
    return max(n_bytes / BANDWIDTH, flops / (efficiency * PEAK))


def of_torch(made: Iterable, efficiency: float) -> list[Row]:
    """Derive torch's rows from synk's launches.

    Passes over an image: batch norm 3 forward (statistics, then read and write) and 5 backward; a rectifier
    in place 2, and 3 backward; the sum of a block 3, and that of its gradients 3 backward. Momentum in three
    kernels over lists of tensors: 8 passes over the weights, which autocast has cast before (6 bytes each),
    and whose gradients are cast after. Pooling, loss and products as here.
    """
    made = list(made)
    as_here = [
        row for row in summed(made, efficiency) if row.kind in ("convolution", "pooling", "loss", "product")
    ]
    norms = [launch for launch in made if launch.name == "moments"]
    images = {True: 0, False: 0}  # bytes of what is normalised, by whether a rectifier follows at once
    for launch in norms:
        images["relu=True" in launch.node] += bytes_of(launch.arrays[0])
    ends = [launch for launch in made if launch.name == "normalise_and_add"]
    blocks = sum(bytes_of(launch.arrays[-1]) for launch in ends)
    updated = [launch for launch in made if launch.program == "update" and launch.name.startswith("k")]
    weights = sum(bytes_of(launch.arrays[0]) for launch in updated)
    passes = [
        ("batch norm", 5 * len(norms), 8 * sum(images.values())),
        ("rectifiers", 2 * (len(norms) - len(ends)), 5 * images[True] + 5 * blocks),
        ("sums", 2 * len(ends), 6 * blocks),
        ("update", 3 * -(-len(updated) // 30), 8 * weights),
        ("cast", 2 * len(updated), 3 * weights),
    ]
    derived = [Row(kind, n, n_bytes, n_bytes / BANDWIDTH) for kind, n, n_bytes in passes]
    return sorted([*as_here, *derived], key=lambda row: -row.seconds)


def bytes_of(array: tuple[str, tuple[int, ...]]) -> int:
    dtype, shape = array
    return np.dtype(dtype).itemsize * int(np.prod(shape))


def show(rows: list[Row]) -> None:
    total = Row("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    print(f"  {'kind':12} {'launches':>8} {'MB':>10} {'ms':>8}")
    for row in [*rows, total]:
        print(f"  {row.kind:12} {row.launches:8} {row.n_bytes / 1e6:10,.1f} {1e3 * row.seconds:8.2f}")


if __name__ == "__main__":
    main()
