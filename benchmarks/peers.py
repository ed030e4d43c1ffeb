"""Training beside JAX and torch.compile: steps, starts, and what ends a step of Adam.

    make peers
    .venv-peers/bin/python benchmarks/peers.py --rounds 12
    .venv-peers/bin/python benchmarks/peers.py --only update

`steps` are those of MNIST's perceptron, with momentum and with Adam: synk on two ranks, and others that have
all cores in one process. `starts` begin before a process does, and end after its first step; torch is not
compiled for ResNet-50. `update` reduces and updates 25 million parameters on two and on four ranks.

Everybody begins with the same weights on the same data, and losses of the first steps must agree, or the
times say nothing. Candidates take turns, and sleep while others are measured; a ratio is that of two times of
one round, and the least and the most of these stand in brackets. Without JAX or torch, others are measured.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import markdown_tables
import peers_update
import starts
from lines import Crew
from resnet import AGREE, SYNK, check

from synk.tools.bench import pairs

RULES = ("momentum", "adam")
RANKS = (2, 4)  # that end a step of Adam
REST = 0.3  # seconds: threads of a library spin for a while when their work is done
EMPTY, FILLED = ", empty cache", ", filled cache"
KEEPING = (SYNK, "torch.compile")  # what they compile, for later processes


class Side(NamedTuple):
    """A candidate, and the library that it needs beside synk."""

    words: list[str]  # of its script
    library: str = SYNK


STEPS = {
    SYNK: Side(["synk", "--ranks=2"]),
    "synk, shard=None": Side(["synk", "--ranks=2", "--whole"]),
    "JAX, jit": Side(["jax"], "jax"),
    "JAX, shard_map on 2 devices": Side(["jax", "--ranks=2"], "jax"),
    "torch.compile": Side(["torch"], "torch"),
}


def main() -> None:
    options = parse()
    print(machine.describe(), flush=True)
    for library in ("jax", "torch"):
        if not find_spec(library):
            print(
                f"without {library}: it is not installed: make peers installs it in an environment of its own"
            )
    for part in options.only:
        for table in PARTS[part](options):
            print(f"\n{table}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--rounds", type=int, default=12, help="in which each candidate has one turn")
    add("--steps", type=int, default=60, help="of a perceptron in a turn")
    add("--quick", action="store_true", help="few steps and small sizes, to see that it runs")
    options = parser.parse_args()
    options.net = (
        {"depth": 18, "size": 64, "batch": 4} if options.quick else {"depth": 50, "size": 224, "batch": 8}
    )
    if options.quick:
        options.steps = 2
    return options


def present(sides: Mapping[str, Side]) -> dict[str, Side]:
    """Return those whose library is installed."""
    return {name: side for name, side in sides.items() if find_spec(side.library)}


def perceptron(side: Side, rule: str = RULES[0]) -> list[str]:
    """Return the words of a script that trains a perceptron."""
    return ["peers_perceptron.py", *side.words, f"--rule={rule}", "--rows=5000", "--batch=500"]


# --- steps -------------------------------------------------------------------------------------------


def time_steps(options: argparse.Namespace) -> Iterator[str]:
    """Yield a table for each rule."""
    for rule in RULES:
        crews = {name: Crew(perceptron(side, rule)) for name, side in present(STEPS).items()}
        yield table_of_steps(rule, *take_turns(crews, options.steps, options.rounds))


def take_turns(
    crews: Mapping[str, Crew], steps: int, rounds: int
) -> tuple[pairs.Comparison, pairs.Comparison]:
    """Start crews, check that they agree, and return the seconds of steps: by the clock, of the processor."""
    clock: dict[str, list[float]] = {name: [] for name in crews}
    processor: dict[str, list[float]] = {name: [] for name in crews}
    with contextlib.ExitStack() as running:
        for crew in crews.values():
            running.enter_context(crew).ready()
        check({name: crew.run(AGREE).losses for name, crew in crews.items()})
        for crew in crews.values():
            crew.run(steps)  # to warm up
        for _, name in markdown_tables.in_turn(list(crews), rounds):
            time.sleep(REST)
            block = crews[name].run(steps)
            clock[name].append(block.seconds / steps)
            processor[name].append(block.processor / steps)
    return pairs.Comparison(clock), pairs.Comparison(processor)


def table_of_steps(rule: str, clock: pairs.Comparison, processor: pairs.Comparison) -> str:
    """Return times and their ratios to synk's."""
    header = [f"perceptron, batch 500, {rule}"]
    for kind in ("step", "of the processor"):
        header += [kind, f"× {SYNK} (range)"]
    rows = [[name, *in_words(clock, name), *in_words(processor, name)] for name in clock.seconds]
    return markdown_tables.aligned(header, rows)


# --- starts ------------------------------------------------------------------------------------------


def time_starts(options: argparse.Namespace) -> Iterator[str]:
    """Yield a table of first steps of the perceptron, and one of ResNet's."""
    chosen = (SYNK, "JAX, jit", "JAX, shard_map on 2 devices", "torch.compile")
    sides = present({name: STEPS[name] for name in chosen})
    yield table_of_starts(
        "perceptron", {name: perceptron(side) for name, side in sides.items()}, options.rounds
    )
    with tempfile.TemporaryDirectory() as folder:
        net = [f"--{name}={value}" for name, value in options.net.items()]
        weights = f"--weights={folder}/weights.npz"
        with Crew(["resnet_in_synk.py", *net, weights]) as crew:
            crew.ready()  # now the weights are written, for torch to begin with
        commands = {SYNK: ["resnet_in_synk.py", *net]}
        if find_spec("torch"):
            commands["torch, not compiled"] = ["resnet_in_torch.py", *net, weights]
        yield table_of_starts(f"ResNet-{options.net['depth']}", commands, options.rounds)


def table_of_starts(title: str, commands: Mapping[str, list[str]], rounds: int) -> str:
    """Check that commands agree, start them in turn, and return how long each took to its first step.

    Those that keep what they compile start from an empty cache, and from one that an earlier start filled.
    """
    seconds: dict[str, list[float]] = {}
    for name in commands:
        seconds |= {f"{name}{cache}": [] for cache in ((EMPTY, FILLED) if name in KEEPING else ("",))}
    with tempfile.TemporaryDirectory() as folder:
        filled = Path(folder, "filled")
        check({name: [first_step(words, filled)[1]] for name, words in commands.items()})
        for number, name in markdown_tables.in_turn(list(seconds), rounds):
            words = commands[name.removesuffix(EMPTY).removesuffix(FILLED)]
            caches = (
                filled if name.endswith(FILLED) else Path(folder, f"{list(seconds).index(name)}-{number}")
            )
            seconds[name].append(first_step(words, caches)[0])
    comparison, references = pairs.Comparison(seconds), [SYNK + EMPTY, SYNK + FILLED]
    header = [f"start of {title}", "to its first step", *(f"× {name} (range)" for name in references)]
    return markdown_tables.aligned(
        header, [[name, *in_words(comparison, name, *references)] for name in seconds]
    )


def first_step(words: list[str], caches: Path) -> tuple[float, float]:
    """Return the seconds from before a process until it has made its first step, and the loss of that."""
    start = time.perf_counter()
    with Crew(words, environment=starts.compiled_in(caches)) as crew:
        crew.ready()
        (loss,) = crew.run(1).losses
        return time.perf_counter() - start, loss


# --- reduce and update -------------------------------------------------------------------------------


def time_updates(options: argparse.Namespace) -> Iterator[str]:
    """Yield a table for each number of ranks."""
    size = 100 if options.quick else peers_update.SIZE
    references = [peers_update.WHOLE, peers_update.MEMCPY]
    for n_ranks in RANKS:
        comparison = peers_update.compare(n_ranks, options.rounds, size)
        title = f"Adam, {size * size:,} parameters, {n_ranks} ranks"
        header = [title, "reduce and update", *(f"× {name} (range)" for name in references)]
        rows = [[name, *in_words(comparison, name, *references)] for name in comparison.seconds]
        yield markdown_tables.aligned(header, rows)


# --- words -------------------------------------------------------------------------------------------


def in_words(comparison: pairs.Comparison, name: str, *references: str) -> list[str]:
    """Return a median time, and its ratios to those of references, by default to that of the first."""
    ratios = (ratios_to(comparison, name, one) for one in references or [comparison.reference])
    return [pairs.in_units(comparison.median(name)), *map(ranged, ratios)]


def ratios_to(comparison: pairs.Comparison, name: str, reference: str) -> list[float]:
    """Return the times of a candidate divided by those of another one in the same rounds."""
    both = zip(comparison.seconds[name], comparison.seconds[reference], strict=True)
    return [time / of_reference for time, of_reference in both]


def ranged(ratios: Sequence[float]) -> str:
    """Return the median, with the least and the most."""
    middle = pairs.spread(ratios).median
    return markdown_tables.in_words(pairs.Spread(min(ratios), middle, max(ratios)))


PARTS = {"steps": time_steps, "starts": time_starts, "update": time_updates}

if __name__ == "__main__":
    main()
