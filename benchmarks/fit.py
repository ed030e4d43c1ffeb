"""Training loops beside PyTorch Lightning's: the cost of a step beyond the loop by hand, and of saving.

    python benchmarks/fit.py
    python benchmarks/fit.py --rounds 10 --gigabytes 1

The same linear regression in one process, on the same batches: what remains is the loop around it. What
trainings cost before their first step and after the last is in both of two times, not in their difference.
Lightning runs with everything off that can be. What is saved are parameters that nothing else uses.
"""

import argparse
import cProfile
import logging
import tempfile
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import markdown_tables
import numpy as np

import synk
from synk.tools.bench import pairs

LIGHTNING = find_spec("lightning") is not None  # without it synk alone is measured
ROWS, COLUMNS, BATCH = 12_800, 10, 64
QUICK_ROWS = 640
MORE = 3  # epochs


def main() -> None:
    options = parse()
    print(machine.describe(), flush=True)
    synk.fork(1)
    try:
        print_steps(options)
        print_saves(options)
    finally:
        synk.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=10, help="of one epoch, and one save, each")
    add("--gigabytes", type=float, default=1.0, help="of the state that is saved")
    add("--quick", action="store_true", help="few rows and bytes, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.gigabytes = pairs.LEAST_ROUNDS, 0.01
    return options


# --- steps ---------------------------------------------------------------------------------------------


def print_steps(options: argparse.Namespace) -> None:
    """Compare epochs of loops by hand with those of `fit` and of Lightning."""
    rows = QUICK_ROWS if options.quick else ROWS
    n_steps = rows // BATCH
    values = np.random.default_rng(0).normal(size=(rows, COLUMNS)).astype("float32")
    loops = ours(values) | (theirs(values) if LIGHTNING else {})
    comparison = pairs.compare(loops, options.rounds, warmup=1, timer=timed_epochs)
    print(f"\n{markdown_tables.table(comparison, f'{MORE - 1} epochs of {n_steps} steps')}")
    n_steps *= MORE - 1
    names = list(loops)
    for by_hand, loop in zip(names[::2], names[1::2], strict=True):
        beyond = [
            (long - short) / n_steps * 1e6
            for long, short in zip(comparison.seconds[loop], comparison.seconds[by_hand], strict=True)
        ]
        low, median, high = pairs.spread(beyond)
        calls = (calls_in_epochs(loops[loop]) - calls_in_epochs(loops[by_hand])) / n_steps
        print(f"{loop}: {median:.1f} us ({low:.1f}-{high:.1f}) and {calls:.1f} calls a step beyond {by_hand}")


def timed_epochs(loop) -> float:
    """Return the seconds of all epochs but one."""
    one, more = pairs.timed(partial(loop, 1)), pairs.timed(partial(loop, MORE))
    return more - one


def ours(values):
    """Return a loop by hand and `fit`, by name: functions of the number of epochs."""
    import pytensor
    import pytensor.tensor as pt

    from synk.extensions import batches, train, updates
    from synk.extensions.fit import fit

    x, w = pt.fmatrix("x"), pytensor.shared(np.zeros(COLUMNS, "float32"), name="w")
    loss = ((x @ w - x.sum(axis=1)) ** 2).mean()
    step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=np.float32(0.01))
    data = synk.data(values, var=x)

    def by_hand(epochs):
        for epoch in range(epochs):
            total = 0.0
            for rows in batches(len(values), BATCH, seed=(0, epoch)):
                total += float(step(data, batch=rows)) * len(rows)
        return total

    return {
        "synk, by hand": by_hand,
        "synk, fit": lambda epochs: fit(step, (data,), epochs=epochs, batch_size=BATCH, progress=False),
    }


def theirs(values):
    """Return a loop by hand in torch and Lightning's, by name."""
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(COLUMNS))

        def training_step(self, batch, _):
            return ((batch @ self.w - batch.sum(dim=1)) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    module, rows = Module(), torch.from_numpy(values)
    optimizer = module.configure_optimizers()

    def batched():
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(values)))
        return (rows[chosen] for chosen in order.split(BATCH))

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            return batched()

    def by_hand(epochs):
        for _ in range(epochs):
            total = 0.0
            for batch in batched():
                optimizer.zero_grad()
                loss = module.training_step(batch, 0)
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(batch)
        return total

    loader = torch.utils.data.DataLoader(Batches(), batch_size=None)

    def by_lightning(epochs):
        trainer(max_epochs=epochs).fit(module, loader)

    return {"torch, by hand": by_hand, "Lightning": by_lightning}


def trainer(**how):
    """Return a trainer that prints and writes nothing."""
    import lightning

    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    off = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return lightning.Trainer(**off, accelerator="cpu", **how)


def calls_in_epochs(loop) -> int:
    """Return how many function calls all epochs but one make."""
    found = []
    for epochs in (1, MORE):
        profile = cProfile.Profile()
        profile.runcall(loop, epochs)
        found.append(sum(entry.callcount for entry in profile.getstats()))
    return found[1] - found[0]


# --- saving ----------------------------------------------------------------------------------------------


def print_saves(options: argparse.Namespace) -> None:
    """Compare how long a loop waits for a save with one copy of the memory that is saved."""
    n_numbers = int(options.gigabytes * 1e9) // 4
    with tempfile.TemporaryDirectory() as folder:
        save, wait = our_save(n_numbers, Path(folder, "synk"))
        source, target = np.ones(n_numbers, "float32"), np.empty(n_numbers, "float32")
        target[:] = source  # asks for its memory
        candidates = {
            "memory copy": lambda: np.copyto(target, source),
            "synk, Checkpoints": save,
        }
        if LIGHTNING:
            candidates["Lightning, save_checkpoint"] = their_save(n_numbers, Path(folder, "lightning.ckpt"))

        def timer(candidate):
            seconds = pairs.timed(candidate)
            wait()  # until it is on disk: the loop goes on meanwhile
            return seconds

        comparison = pairs.compare(candidates, options.rounds, warmup=1, timer=timer)
    print(f"\n{markdown_tables.table(comparison, f'{4 * n_numbers / 1e9:g} GB')}")


def our_save(n_numbers: int, folder: Path):
    """Return functions that save a training, and that wait until it is written."""
    import pytensor
    import pytensor.tensor as pt

    from synk.extensions import train, updates
    from synk.extensions.fit import Checkpoints, Training
    from synk.extensions.fit.feeds import feed

    x, w = pt.fvector("x"), pytensor.shared(np.zeros(n_numbers, "float32"), name="w")
    step = train.make_train_function((x * w[0]).mean(), [w], [x], updates.sgd, learning_rate=np.float32(1))
    step.state = (w,)
    training = Training(step, feed(step, (np.ones(8, "float32"),), batch_size=8), epochs=1)
    saved = Checkpoints(folder, keep=1)
    saved.on_train_begin(training)

    def save():
        training.history.steps += 1
        saved.save(training)

    return save, saved.wait


def their_save(n_numbers: int, path: Path):
    """Return a function that saves a module of as many parameters."""
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(n_numbers))

        def training_step(self, batch, _):
            return (batch * self.w[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    made = trainer(max_steps=1)
    made.fit(Module(), torch.utils.data.DataLoader(torch.ones(8)))
    return lambda: made.save_checkpoint(path)


if __name__ == "__main__":
    main()
