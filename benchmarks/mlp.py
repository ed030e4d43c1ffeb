"""A perceptron of MNIST's size in PyTensor and in torch, from the same weights.

    784 pixels -> 800 rectified units -> 800 rectified units -> 10 classes, mean cross-entropy

A training step is the gradient and an update by stochastic gradient descent with Nesterov momentum.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from mlp_data import MOMENTUM, RATE, SIZES, Layers, first_layers, images, module
from rivals import Candidate


class Network(NamedTuple):
    """The graphs in PyTensor."""

    x: Any  # float32 (rows, pixels)
    y: Any  # int64 (rows,)
    params: list[Any]  # shared variables: weights and biases in turn
    loss: Any


def rectified(x: Any) -> Any:
    return pt.maximum(x, np.float32(0))


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return that of each row."""
    return -pt.special.log_softmax(logits, axis=1)[pt.arange(labels.shape[0]), labels]


def network(
    layers: Layers,
    relu: Callable[[Any], Any] = rectified,
    losses: Callable[[Any, Any], Any] = cross_entropy,
) -> Network:
    """Write the perceptron as PyTensor graphs, in PyTensor's own words or those of `synk.ops`."""
    x, y = pt.fmatrix("x"), pt.lvector("y")
    params: list[Any] = []
    signal = x
    for number, (weights, biases) in enumerate(layers):
        if number:
            signal = relu(signal)
        params += [pytensor.shared(weights, name=f"W{number}"), pytensor.shared(biases, name=f"b{number}")]
        signal = signal @ params[-2] + params[-1]
    return Network(x, y, params, losses(signal, y).mean())


def nesterov(net: Network) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Return velocities, and updates: ``v := momentum v - rate g``, ``p := p + momentum v - rate g``."""
    rate, momentum = np.float32(RATE), np.float32(MOMENTUM)
    velocities, updates = [], []
    for p, g in zip(net.params, pytensor.grad(net.loss, net.params), strict=True):
        v = pytensor.shared(np.zeros_like(p.get_value()), name=f"velocity of {p.name}")
        new_v = momentum * v - rate * g
        updates += [(v, new_v), (p, p + momentum * new_v - rate * g)]
        velocities.append(v)
    return velocities, updates


def optimizer(torch: Any, net: Any) -> Any:
    """Return torch's form of the update."""
    return torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, nesterov=True)


def candidates(
    rows: int, modes: Mapping[str, Any], torch: Any, sizes: tuple[int, ...] = SIZES
) -> dict[str, Candidate]:
    """Return a training step on `rows` images for each mode and torch; values: loss, gradients, weights."""
    layers, batch = first_layers(sizes), images(rows, sizes)
    made = {name: in_pytensor(layers, batch, mode) for name, mode in modes.items()}
    if torch:
        made["torch"] = in_torch(torch, layers, batch)
    return made


def in_pytensor(layers: Layers, batch: tuple[np.ndarray, np.ndarray], mode: Any) -> Candidate:
    """Compile a training step."""
    net = network(layers)
    velocities, updates = nesterov(net)
    function = pytensor.function([net.x, net.y], net.loss, updates=updates, mode=mode)
    losses = []

    def values():
        # After the first step a velocity is the gradient, scaled.
        gradients = [v.get_value() / -np.float32(RATE) for v in velocities]
        return [losses[-1], *gradients, *(p.get_value() for p in net.params)]

    return Candidate(lambda: losses.append(function(*batch)), values)


def in_torch(torch: Any, layers: Layers, batch: tuple[np.ndarray, np.ndarray]) -> Candidate:
    """Make a training step as its tutorials write it."""
    net = module(torch, layers)
    update = optimizer(torch, net)
    x, y = map(torch.tensor, batch)
    losses = []

    def step():
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        update.step()
        losses.append(loss.item())

    def values():
        params = list(net.parameters())
        arrays = [a.detach().numpy().T for a in [*(p.grad for p in params), *params]]
        return [np.float32(losses[-1]), *arrays]

    return Candidate(step, values)
