"""The perceptron in synk, JAX or torch, with momentum or Adam; a script that `lines.Crew` starts.

    python peers_perceptron.py synk --ranks 2 --rule adam --rows 5000 --batch 500
    python peers_perceptron.py jax --ranks 1 --rule adam --rows 5000 --batch 500

Each side is written as its users write it: rows of the images are chosen in the step, which returns its loss.
A side imports its own library alone, when its turn comes: a start is timed, too.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import lines
import mlp_data as data
import numpy as np

N_THREADS = len(os.sched_getaffinity(0))  # of a side that is one process

Step = Callable[[int], float]  # number of the step -> its loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("side", choices=SIDES)
    add("--rule", choices=("momentum", "adam"), default="momentum")
    add("--ranks", type=int, default=1, help="of synk; devices of JAX")
    add("--whole", action="store_true", help="every rank of synk updates all parameters: shard=None")
    data.add_options(parser)
    options = parser.parse_args()
    start = time.perf_counter()
    step, pids = SIDES[options.side](options, data.batches(options))
    lines.serve(step, pids, time.perf_counter() - start)


def in_synk(options: argparse.Namespace, batches: Iterator[Any]) -> tuple[Step, tuple[int, ...]]:
    """Return a step on ranks with one thread each, and their processes."""
    import mlp

    import synk
    from synk.extensions import updates
    from synk.extensions.train import make_train_function

    synk.fork(options.ranks, threads=1)
    net = mlp.network(data.first_layers())
    momentum = {"learning_rate": data.RATE, "momentum": data.MOMENTUM}
    rule, settings = {"momentum": (updates.momentum, momentum), "adam": (updates.adam, {})}[options.rule]
    shard = {"shard": None} if options.whole else {}
    train = make_train_function(net.loss, net.params, [net.x, net.y], rule, **settings, **shard)
    x, y = (synk.data(values) for values in data.images(options.rows))
    return lambda number: float(train(x, y, batch=next(batches))), synk.pids()


def in_torch(options: argparse.Namespace, batches: Iterator[Any]) -> tuple[Step, tuple[int, ...]]:
    """Return a step whose loss is compiled, with torch's fastest form of the update."""
    os.environ |= {"OMP_NUM_THREADS": str(N_THREADS), "MKL_NUM_THREADS": str(N_THREADS)}
    import torch

    torch.set_num_threads(N_THREADS)
    net = data.module(torch, data.first_layers())
    momentum = partial(torch.optim.SGD, lr=data.RATE, momentum=data.MOMENTUM)
    rule = {"momentum": momentum, "adam": partial(torch.optim.Adam, lr=1e-3)}[options.rule]
    update = rule(net.parameters(), fused=True)
    x, y = map(torch.from_numpy, data.images(options.rows))
    loss_of = torch.compile(lambda x, y: torch.nn.functional.cross_entropy(net(x), y))

    def step(number: int) -> float:
        rows = torch.from_numpy(next(batches))
        update.zero_grad()
        loss = loss_of(x[rows], y[rows])
        loss.backward()
        update.step()
        return loss.item()

    return step, (os.getpid(),)


def in_jax(options: argparse.Namespace, batches: Iterator[Any]) -> tuple[Step, tuple[int, ...]]:
    """Return one jitted function, on one device that has all cores, or on several by shard_map."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.ranks}"
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        *hidden, (weights, biases) = params
        for of_layer, offsets in hidden:
            x = jax.nn.relu(x @ of_layer + offsets)
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ weights + biases), y[:, None], axis=1).mean()

    def momentum(params: Any, velocity: Any, gradient: Any) -> tuple[Any, Any]:
        velocity = jax.tree.map(lambda v, g: data.MOMENTUM * v - data.RATE * g, velocity, gradient)
        return jax.tree.map(jnp.add, params, velocity), velocity

    def adam(params: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
        mean, square, t = state
        t = t + 1
        rate, root = 1e-3 / (1 - 0.9**t), jnp.sqrt(1 - 0.999**t)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, gradient)
        new = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) / root + 1e-8), params, mean, square)
        return new, (mean, square, t)

    def train(params: Any, state: Any, x: Any, y: Any, rows: Any) -> tuple[Any, Any, Any]:
        loss, gradient = jax.value_and_grad(loss_of)(params, x[rows], y[rows])
        if options.ranks > 1:
            loss, gradient = jax.lax.pmean((loss, gradient), "rank")
        return *rule(params, state, gradient), loss

    params = data.first_layers()
    zeros = partial(jax.tree.map, np.zeros_like, params)
    of_adam = adam, (zeros(), zeros(), np.float32(0))
    rule, state = (momentum, zeros()) if options.rule == "momentum" else of_adam
    x, y = data.images(options.rows)
    held, place = (params, state, x, y.astype("int32")), lambda rows: rows
    if options.ranks > 1:
        mesh = jax.make_mesh((options.ranks,), ("rank",))
        all_of_it, part = PartitionSpec(), PartitionSpec("rank")
        of_inputs = (*[all_of_it] * len(held), part)
        train = jax.shard_map(train, mesh=mesh, in_specs=of_inputs, out_specs=all_of_it, check_vma=False)
        held = jax.device_put(held, NamedSharding(mesh, all_of_it))
        place = partial(jax.device_put, device=NamedSharding(mesh, part))
    compiled = jax.jit(train, donate_argnums=(0, 1))
    params, state, x, y = jax.device_put(held)

    def step(number: int) -> float:
        nonlocal params, state
        params, state, loss = compiled(params, state, x, y, place(next(batches).astype("int32")))
        return float(loss)

    return step, (os.getpid(),)


SIDES = {"synk": in_synk, "jax": in_jax, "torch": in_torch}

if __name__ == "__main__":
    main()
