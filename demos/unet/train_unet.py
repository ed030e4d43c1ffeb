"""Train a U-Net to find objects in images, with a Dice loss over the whole batch, on several ranks.

    python train_unet.py --ranks 8 --images images/ --masks masks/          512 channels at the bottom
    python train_unet.py --ranks 2 --base 16 --depth 3 --size 64 --rate 1e-3 --epochs 11     `make unet`
    python train_unet.py ... --checkpoints run                              goes on when it is called again

Beside this file: `pairs` has images and masks, `model` the network, `picture` draws predictions beside truth.
In ../shared/, `training` calls `fit`, and `report` says what came of it.
"""

import argparse
import sys
from math import ceil
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import model
import numpy as np
import pairs
import pytensor.tensor as pt
import training
from extras import need
from picture import Picture
from report import Score

import synk
from synk.extensions import schedules, train, updates

LEARNING_RATE = 1.3e-4  # of Adam, times the number of ranks
WARM_UP = 0.04  # of all steps
DICE = Score("dice", "validation Dice", "{:.4f}", mode="max")


def main() -> None:
    options = parse()
    n_ranks = synk.fork(options.ranks)
    known, unknown = make_pairs(options)
    x = pt.tensor("images", shape=(None, *known.images.shape[1:]), dtype="float32")
    y = pt.tensor("masks", shape=(None, *known.masks.shape[1:]), dtype="uint8")
    network = model.build(x, y, options.base, options.depth, options.seed, options.norm)
    # A training that goes on with more or fewer ranks takes the same steps.
    replicas = options.replicas or n_ranks
    n_rows, batch_size = len(known.masks), replicas * options.batch_size
    step = make_step(options, [x, y], network, replicas, options.epochs * ceil(n_rows / batch_size))

    n_parameters = sum(param.get_value(borrow=True).size for param in network.params.values())
    title = (
        f"U-Net of {n_parameters:,} parameters, {n_rows:,} images of {options.size} x {options.size}, "
        f"{n_ranks} rank{'s' * (n_ranks > 1)}, batches of {batch_size}"
    )
    pictures = []
    if options.picture:
        pictures.append(Picture(options.picture, synk.function([x], network.probabilities), *unknown))
    training.train(
        options,
        title,
        step,
        tuple(known),
        batch_size=batch_size,
        validation=(synk.function([x, y], [network.loss, network.dice]), tuple(unknown)),
        # However large the set is, a rank has no more images in work at a time than in a training step.
        validation_slices=ceil(len(unknown.masks) / batch_size),
        callbacks=pictures,
        score=DICE,
    )


def make_pairs(options):
    """Return images and masks to train on, and others to validate with."""
    if options.images is None:
        rng = np.random.default_rng(options.seed)
        n_apart = max(1, round(pairs.VALIDATION_SHARE * options.synthetic))
        return tuple(pairs.ellipses(n, options.size, rng) for n in (options.synthetic, n_apart))
    files = pairs.find(options.images, options.masks)
    return pairs.split(pairs.read(files, options.size), options.seed)


def make_step(options, inputs, network, replicas, n_steps):
    """Return a training step, whose learning rate follows a schedule of so many steps."""
    done = schedules.counter()
    # Batches grow with the ranks, and so does the rate.
    rate = schedules.scaled(options.rate, replicas)
    return train.make_train_function(
        network.train_loss,
        network.params.values(),
        inputs,
        schedules.counting(updates.adam, done),
        updates=network.updates,
        learning_rate=schedules.cosine(done, rate, n_steps, warm_up=int(WARM_UP * n_steps)),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a U-Net on several ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=int, help="processes; None is one for each core")
    add("--images", metavar="DIR", help="a folder of images; None are ellipses in speckle")
    add("--masks", metavar="DIR", help="a folder of their masks, of the same names, or ending in _mask")
    add("--synthetic", type=int, default=640, metavar="N", help="ellipses to train on")
    add("--size", type=int, default=128, help="of the images, in pixels")
    add("--base", type=int, default=32, help="channels of the first level")
    add("--depth", type=int, default=4, help="levels down, each with twice the channels")
    add(
        "--norm",
        choices=("all", "own", "group"),
        default="all",
        help="normalise by images of all ranks, by each rank's own, or each by itself",
    )
    add("--epochs", type=int, default=20, help="times through the training set")
    add("--batch-size", type=int, default=8, help="images in a step, for each rank")
    add("--rate", type=float, default=LEARNING_RATE, help="of Adam, for each rank")
    add(
        "--replicas", type=int, metavar="N", help="batch and rate are those of N ranks, on any number of them"
    )
    add("--seed", type=int, default=0, help="of weights, batches and images")
    add("--picture", metavar="PNG", help="draw predictions beside truth to this file")
    training.add_options(parser)
    options = parser.parse_args()
    for name in ("synthetic", "size", "base", "depth", "epochs", "batch_size", "replicas"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value} is less than 1")
    if options.size % 2**options.depth:
        parser.error(
            f"--size {options.size} is no multiple of {2**options.depth}, for --depth {options.depth}"
        )
    if (options.images is None) != (options.masks is None):
        parser.error("--images and --masks belong together: pass both, or neither")
    if options.picture:
        need("matplotlib.figure")
    if options.images:
        need("PIL.Image")  # better missed here than after the fork
    training.check_options(options)
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        # Before the first step; workers and shared memory go with the run, which ends with the script.
        sys.exit(130)  # 128 + SIGINT, as of a shell
