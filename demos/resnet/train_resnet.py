"""Train a residual network on synthetic images or on folders of photographs, on several ranks.

    python train_resnet.py --ranks 2                                        ResNet-50, as for ImageNet
    python train_resnet.py --ranks 2 --depth 18 --size 64 --classes 10      a minute on two cores
    python train_resnet.py --image-dir photographs/ --plot curve.png

Beside this file: `model` has the network; `folders` finds image files, `images` reads them, `feeds` gives
images to the ranks. In ../shared/, `report` and `curve` show how it goes.
"""

import argparse
import json
import sys
from math import ceil
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import curve
import feeds
import folders
import model
from extras import need
from report import Report

import synk
from synk.extensions import batches, schedules, train, updates

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
    title = (
        f"ResNet-{options.depth} of {model.count(network.params):,} parameters, {n_rows:,} images, "
        f"{n_ranks} rank{'s' * (n_ranks > 1)}, {options.rule}"
    )
    with Report(title, options.epochs, n_rows) as report:
        step, validate = make_functions(options, feed, network, n_ranks, ceil(n_rows / batch_size))
        for epoch in range(options.epochs):
            for rows in batches(n_rows, batch_size, seed=(options.seed, epoch)):
                report.step(step(rows, epoch), len(rows))
            report.epoch(*validate())
    synk.close()

    if options.plot:
        curve.draw(options.plot, report)
    if options.losses:
        Path(options.losses).write_text(json.dumps(report.losses()))
    report.finish()


def make_feed(options):
    """Return the images as a Feed, and how many classes there are."""
    if options.image_dir is None:
        made = feeds.synthetic(options.synthetic, options.size, options.classes, options.seed)
        return feeds.from_memory(*made), options.classes
    need("PIL.Image")  # better missed here than in the ranks
    training, validation, classes = folders.find(options.image_dir, options.seed)
    return feeds.from_files(training, validation, options.size, options.seed), len(classes)


def make_functions(options, feed, network, n_ranks, steps_per_epoch):
    """Return two functions: a training step, and validation on the whole set."""
    epochs = [] if feed.epoch is None else [feed.epoch]
    done, n_steps = schedules.counter(), options.epochs * steps_per_epoch
    # Batches grow with the ranks, and so does the rate.
    rate = schedules.scaled(LEARNING_RATES[options.rule] * options.batch_size / 256, n_ranks)
    take_step = train.make_train_function(
        network.train_loss,
        network.params.values(),
        feed.inputs,
        schedules.counting(getattr(updates, options.rule), done),
        updates=network.updates,
        bcast_inputs=epochs,
        learning_rate=schedules.cosine(done, rate, n_steps, warm_up=int(WARM_UP * n_steps)),
    )
    evaluate = synk.function(feed.inputs, [network.loss, network.accuracy])
    train_data = [synk.data(values) for values in feed.training]
    data = [synk.data(values) for values in feed.validation]
    # However large the set is, a rank has no more images in work at a time than in a training step.
    slices = ceil(len(feed.validation[-1]) / (n_ranks * options.batch_size))

    def step(rows, epoch):
        return take_step(*train_data, *([epoch] if epochs else []), batch=rows)

    def validate():
        return evaluate(*data, num_slices=slices)

    return step, validate


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
    add("--plot", metavar="PNG", help="draw the learning curve to this file")
    add("--losses", metavar="JSON", help="write the losses of all epochs to this file")
    options = parser.parse_args()
    for name in ("epochs", "batch_size", "synthetic", "classes", "size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)} is less than 1")
    if options.plot:
        need("matplotlib.figure")  # better missed now than after the training
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        # Workers and shared memory go with the run, which ends with the script.
        sys.exit(130)  # 128 + SIGINT, as of a shell
