"""Measure the cost of sending a graph to another process, in bytes and seconds, beside compiling it.

    python benchmarks/serialise.py

PyTensor's own way, `pickle`, recurses, so it fails at depths that a flat list can hold; it takes part
where it works.
"""

import argparse
import pickle
import sys

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import deep
import markdown_tables
import mlp
import pytensor
import rivals
from pytensor.graph.traversal import ancestors

from synk.compile import dumps, loads
from synk.tools.bench import pairs


def main() -> None:
    options = parse()
    print(machine.describe())
    for title, inputs, outputs in graphs(options.quick):
        comparison = pairs.compare(measures(inputs, outputs), options.rounds)
        print(f"\n{markdown_tables.table(comparison, title)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="in which everything is measured once")
    parser.add_argument("--quick", action="store_true", help="small graphs, to see that it runs")
    return parser.parse_args()


def graphs(quick: bool):
    """Yield title, inputs and outputs."""
    n_nodes = 200 if quick else 2000
    x, y = deep.chain(n_nodes)
    yield f"chain of {n_nodes:,} nodes", [x], [y]
    net = mlp.network(mlp.first_layers())
    outputs = [net.loss, *pytensor.grad(net.loss, net.params)]
    n_nodes = len({variable.owner for variable in ancestors(outputs)} - {None})
    yield f"MLP and its gradient, {n_nodes} nodes", [net.x, net.y], outputs


def measures(inputs, outputs):
    """Return the functions to time, after a check that graphs survive the round trip."""
    variables = []

    def write():
        variables.clear()
        return dumps(inputs, outputs, share)

    def share(variable):
        variables.append(variable)
        return len(variables) - 1

    payload = write()
    again = loads(payload, variables.__getitem__)
    assert [v.type for values in again for v in values] == [v.type for v in [*inputs, *outputs]]
    found = {"dumps": write, "loads": lambda: loads(payload, variables.__getitem__)}
    try:
        pickled = pickle.dumps((inputs, outputs))
    except RecursionError:
        rivals.leave_out("pickle", f"the graph is deeper than {sys.getrecursionlimit()} calls")
    else:
        # It carries the values of shared variables, too, which are few bytes here or many.
        found |= {"pickle.dumps": lambda: pickle.dumps((inputs, outputs))}
        found |= {"pickle.loads": lambda: pickle.loads(pickled)}
    print(f"{len(payload):,} bytes")
    return found


if __name__ == "__main__":
    main()
