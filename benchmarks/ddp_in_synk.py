"""The perceptron on ranks of synk; a script that `lines.Crew` starts.

python ddp_in_synk.py --ranks 2 --rows 20000 --batch 500
python ddp_in_synk.py --ranks 1 --hosts h1,h2 --interface eth0 --rows 20000 --batch 500
"""

import argparse
import time

# Before NumPy: it holds the libraries to one thread.
import machine  # noqa: F401

# isort: split

import lines
import mlp
import mlp_data as data

import synk
from synk.extensions import updates
from synk.extensions.train import make_train_function


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, required=True, help="of each host")
    parser.add_argument("--hosts")
    parser.add_argument("--interface")
    data.add_options(parser)
    options = parser.parse_args()
    start = time.perf_counter()
    synk.fork(options.ranks, hosts=options.hosts, interface=options.interface, threads=1)
    net = mlp.network(data.first_layers())
    rule = {"learning_rate": data.RATE, "momentum": data.MOMENTUM}
    train = make_train_function(net.loss, net.params, [net.x, net.y], updates.nesterov_momentum, **rule)
    x, y = (synk.data(values) for values in data.images(options.rows))
    batches = data.batches(options)
    lines.serve(lambda number: float(train(x, y, batch=next(batches))), [], time.perf_counter() - start)
    synk.close()


if __name__ == "__main__":
    main()
