"""Training steps of recurrent networks: synk's Scan beside torch's nn.LSTM and nn.GRU.

   python benchmarks/recurrent.py                      an LSTM and a GRU of 128 units, 100 steps of 32 rows
   python benchmarks/recurrent.py --only gru --rounds 20

One thread, float32, seconds of the processor. Both start from the same weights and make the same steps of
gradient descent on the mean square of the differences of all states from targets; losses of the first steps
must agree, or the speeds say nothing.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import numpy as np
import pytensor
import pytensor.tensor as pt
from markdown_tables import aligned, in_words

from synk.compile import array_mode
from synk.tools.bench import pairs

STEPS, BATCH, FEATURES, UNITS = 100, 32, 64, 128
RATE = 0.5
AGREE = 10  # steps of training

Train = Callable[[np.ndarray, np.ndarray], float]  # of inputs and targets, to the loss


def lstm(x, h, c, wx, wh, bx, bh):
    """Return output and cell after a step."""
    i, f, g, o = pt.split(x @ wx + bx + h @ wh + bh, [UNITS] * 4, axis=1)
    c = pt.sigmoid(f) * c + pt.sigmoid(i) * pt.tanh(g)
    return pt.sigmoid(o) * pt.tanh(c), c


def gru(x, h, wx, wh, bx, bh):
    """Return the state after a step."""
    of_x, of_h = x @ wx + bx, h @ wh + bh
    r, z = (pt.sigmoid(of_x[:, at : at + UNITS] + of_h[:, at : at + UNITS]) for at in (0, UNITS))
    n = pt.tanh(of_x[:, 2 * UNITS :] + r * of_h[:, 2 * UNITS :])
    return (1 - z) * n + z * h


class Network:
    """A layer: its step in synk, how many states that has, and how many gates torch has."""

    def __init__(self, step: Callable[..., Any], n_states: int, n_gates: int):
        self.step, self.n_states, self.n_gates = step, n_states, n_gates

    def weights(self) -> list[np.ndarray]:
        """Return random weights as torch has them: of inputs and of states, and biases of both."""
        rng = np.random.default_rng(0)
        rows = self.n_gates * UNITS
        shapes = [(rows, FEATURES), (rows, UNITS), (rows,), (rows,)]
        return [rng.uniform(-1, 1, shape).astype("float32") / UNITS**0.5 for shape in shapes]


NETWORKS = {"lstm": Network(lstm, 2, 4), "gru": Network(gru, 1, 3)}


def in_synk(name: str, mode: Any) -> Train:
    """Return a step of training by Scan."""
    network = NETWORKS[name]
    weights = [pytensor.shared(np.ascontiguousarray(value.T)) for value in network.weights()]
    x, y = pt.ftensor3("x"), pt.ftensor3("y")
    start = pt.zeros((x.shape[1], UNITS), dtype="float32")
    states = pytensor.scan(
        network.step,
        sequences=x,
        outputs_info=[start] * network.n_states,
        non_sequences=weights,
        return_updates=False,
    )
    outputs = states[0] if network.n_states > 1 else states
    loss = ((outputs - y) ** 2).mean()
    slopes = pytensor.grad(loss, weights)
    updates = [(w, w - np.float32(RATE) * slope) for w, slope in zip(weights, slopes, strict=True)]
    function = pytensor.function([x, y], loss, updates=updates, mode=mode)
    function.trust_input = True
    return function


def in_torch(name: str) -> Train:
    """Return a step of training by torch's own layer."""
    import torch

    torch.set_num_threads(1)
    network = NETWORKS[name]
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[name](FEATURES, UNITS)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), network.weights(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    optimizer = torch.optim.SGD(layer.parameters(), RATE)

    def train(x: np.ndarray, y: np.ndarray) -> float:
        optimizer.zero_grad()
        outputs, _ = layer(torch.from_numpy(x))
        loss = torch.nn.functional.mse_loss(outputs, torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


MODES: dict[str, Callable[[str], Train]] = {
    "synk": lambda name: in_synk(name, array_mode()),
    "python": lambda name: in_synk(name, array_mode()),
    "numba": lambda name: in_synk(name, "NUMBA"),
    "torch": in_torch,
}


def main() -> None:
    options = parse()
    print(machine.describe(), flush=True)
    rows = [row(name, options.modes, options.rounds) for name in options.only]
    heads = [head for mode in options.modes for head in (f"{mode}, first", mode)]
    last = options.modes[-1]
    print(aligned(["training", *heads, *[f"× time of {last}" for _ in options.modes[:-1]]], rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=[*NETWORKS], default=[*NETWORKS], metavar="NETWORK")
    add("--modes", nargs="+", choices=[*MODES], default=["synk", "torch"], metavar="MODE")
    add("--rounds", type=int, default=15)
    add("--quick", action="store_true", help="one network, synk and Python only, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.only, options.modes, options.rounds = options.only[:1], ["synk", "python"], 1
    return options


def row(name: str, modes: Sequence[str], rounds: int) -> list[str]:
    """Return a line of the table: for each mode the time to the first result and of a step, then ratios."""
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(STEPS, BATCH, n)).astype("float32") for n in (FEATURES, UNITS))
    trains, first, expected = {}, {}, None
    for mode in modes:
        start = time.perf_counter()
        trains[mode] = MODES[mode](name)
        losses = [float(trains[mode](x, y))]
        first[mode] = time.perf_counter() - start
        losses += [float(trains[mode](x, y)) for _ in range(AGREE)]
        print(f"{name} in {mode}: {losses[0]:.5f} to {losses[-1]:.5f}", flush=True)
        expected = expected or losses
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
    candidates = {mode: lambda t=t: t(x, y) for mode, t in trains.items()}
    comparison = pairs.compare(candidates, rounds, timer=seconds_of_processor)
    cells = [text for m in modes for text in (f"{first[m]:.1f} s", pairs.in_units(comparison.median(m)))]
    return [name, *cells, *[in_words(comparison.ratio(mode, to=modes[-1])) for mode in modes[:-1]]]


def seconds_of_processor(train: Callable[[], Any]) -> float:
    """Return what a step takes of the processor, which other programs may use too."""
    start = time.process_time()
    train()
    return time.process_time() - start


if __name__ == "__main__":
    main()
