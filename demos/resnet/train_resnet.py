"""Train a residual network on synthetic images or on folders of photographs, on several ranks.

    python train_resnet.py --ranks 2                                        ResNet-50, as for ImageNet
    python train_resnet.py --ranks 2 --depth 18 --size 64 --classes 10      a minute on two cores
    python train_resnet.py --image-dir photographs/ --plot curve.png

Beside this file: `model` has the network; `folders` finds image files, `images` reads them, `feeds` gives
images to the ranks. In ../shared/, `training` calls `fit`, and `report` says what came of it.
"""

import argparse
import sys
from math import ceil
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import feeds
import folders
import model
import training
from extras import need

import synk
from synk.extensions import schedules, train, updates

# For steps of 256 images, as in arXiv:1512.03385; smaller steps take as much less.
LEARNING_RATES = {"momentum": 0.1, "nesterov_momentum": 0.1, "sgd": 0.1, "adam": 0.001, "adamw": 0.001}
WARM_UP = 0.05  # of all steps


def main() -> None:
    options = parse()
    n_ranks = synk.fork(options.ranks)
    feed, n_classes = make_feed(options)
    network = model.build(
        model.normalised(feed.pixels),
        feed.inputs[-1],
        options.depth,
        n_classes,
        options.seed,
        options.zero_gamma,
        train_images=model.normalised(feed.train_pixels),
    )
    n_rows, batch_size = len(feed.training[-1]), n_ranks * options.batch_size
    step = make_step(options, feed, network, n_ranks, n_steps=options.epochs * ceil(n_rows / batch_size))
    epochs = [] if feed.epoch is None else [synk.data(0, var=feed.epoch)]

    title = (
        f"ResNet-{options.depth} of {model.count(network.params):,} parameters, {n_rows:,} images, "
        f"{n_ranks} rank{'s' * (n_ranks > 1)}, {options.rule}"
    )
    training.train(
        options,
        title,
        step,
        (*feed.training, *epochs),
        batch_size=batch_size,
        validation=(synk.function(feed.inputs, [network.loss, network.accuracy]), feed.validation),
        # However large the set is, a rank has no more images in work at a time than in a training step.
        validation_slices=ceil(len(feed.validation[-1]) / batch_size),
        callbacks=map(feeds.TellEpoch, epochs),
    )


def make_feed(options):
    """Return the images as a Feed, and how many classes there are."""
    if options.image_dir is None:
        made = feeds.synthetic(options.synthetic, options.size, options.classes, options.seed)
        return feeds.from_memory(*made), options.classes
    need("PIL.Image")  # better missed here than in the ranks
    known, unknown, classes = folders.find(options.image_dir, options.seed)
    return feeds.from_files(known, unknown, options.size, options.seed), len(classes)


def make_step(options, feed, network, n_ranks, n_steps):
    """Return a training step, whose learning rate follows a schedule of so many steps."""
    done = schedules.counter()
    # Batches grow with the ranks, and so does the rate.
    rate = schedules.scaled(LEARNING_RATES[options.rule] * options.batch_size / 256, n_ranks)
    return train.make_train_function(
        network.train_loss,
        network.params.values(),
        feed.inputs,
        schedules.counting(getattr(updates, options.rule), done),
        updates=network.updates,
        bcast_inputs=[] if feed.epoch is None else [feed.epoch],
        learning_rate=schedules.cosine(done, rate, n_steps, warm_up=int(WARM_UP * n_steps)),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a residual network on several ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=int, help="processes; None is one for each core")
    add("--depth", type=int, choices=model.BLOCKS, default=50, help="layers")
    add("--size", type=int, default=224, help="of the images, in pixels")
    add("--synthetic", type=int, default=1024, metavar="N", help="images to train on, drawn at random")
    add("--classes", type=int, default=model.N_CLASSES, help="of synthetic images")
    add(
        "--image-dir",
        metavar="DIR",
        help="has a folder of photographs for each class, in train/ and val/ or without them",
    )
    add("--epochs", type=int, default=4, help="times through the training set")
    add("--batch-size", type=int, default=8, help="images in a step, on each rank")
    add("--rule", choices=LEARNING_RATES, default="momentum", help="how weights follow the gradient")
    add("--zero-gamma", action="store_true", help="have each block begin as its shortcut alone")
    add("--seed", type=int, default=0, help="of weights, batches, images and their parts")
    training.add_options(parser)
    options = parser.parse_args()
    for name in ("epochs", "batch_size", "synthetic", "classes", "size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)} is less than 1")
    training.check_options(options)
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        # Before the first step; workers and shared memory go with the run, which ends with the script.
        sys.exit(130)  # 128 + SIGINT, as of a shell
