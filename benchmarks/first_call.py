"""Compile and run a graph once, and print when each phase ended: a start as `starts` times it.

    python benchmarks/first_call.py {synk,NUMBA,CVM} {mlp,deep}

Nothing but the standard library is imported before the clock runs.
"""

import json
import sys
import time


def main(mode: str, graph: str) -> None:
    """Compile and run a graph once, and print when each phase ended."""
    import pytensor
    import pytensor.tensor

    ends = [time.monotonic()]
    from synk.compile import array_mode

    ends.append(time.monotonic())
    inputs, output, updates, values = GRAPHS[graph]()
    ends.append(time.monotonic())
    function = pytensor.function(
        inputs, output, updates=updates, mode=array_mode() if mode == "synk" else mode
    )
    ends.append(time.monotonic())
    function(*values)
    ends.append(time.monotonic())
    print(json.dumps(ends))


def mlp_step():
    """Return the training step of `mlp`."""
    import mlp

    net = mlp.network(mlp.first_layers())
    _, updates = mlp.nesterov(net)
    return [net.x, net.y], net.loss, updates, mlp.images(250)


def deep_graph():
    """Return 2,000 nodes in a chain: 500 times a product, a sum, a tangent and a factor."""
    import deep

    x, y = deep.chain(2000)
    return [x], y, None, [deep.value()]


GRAPHS = {"mlp": mlp_step, "deep": deep_graph}

if __name__ == "__main__":
    main(*sys.argv[1:])
