"""Training throughput over two processes: synk against torch's DistributedDataParallel on gloo.

    python benchmarks/ddp.py
    python benchmarks/ddp.py --rounds 10 --seconds 5
    python benchmarks/ddp.py --hosts h1,h2 --interface eth0

The same perceptron from the same weights on the same batches. Each crew waits on pipes while the other one
runs a block of steps; the time of starting is not counted. Losses of the first steps must agree, or the
speeds say nothing. On several hosts, the first of which is this machine, each has one rank. Options of ssh
come from SYNK_SSH_OPTIONS.
"""

import argparse
import os
from functools import partial

# Before NumPy: it holds the libraries to one thread.
import machine  # isort: split

import markdown_tables
import numpy as np
from lines import Crew, free_port

from synk.tools.bench import pairs
from synk.transport.machines.mpirun import more_ssh_options, on

N_RANKS = 2
BATCH = 500  # images, of all ranks together
AGREE = 20  # steps


def main() -> None:
    options = parse()
    print(machine.describe(), flush=True)
    with in_synk(options) as synk, in_torch(options) as ddp:
        for crew in (synk, ddp):
            crew.ready()
        check(synk.run.session(AGREE).losses, ddp.run(AGREE).losses)
        steps = AGREE if options.quick else steps_in(options.seconds, synk, ddp)
        blocks = {
            "synk": lambda: synk.run.session(steps).seconds,
            "torch DDP, gloo": lambda: ddp.run(steps).seconds,
        }
        comparison = pairs.compare(blocks, options.rounds, warmup=1, timer=lambda block: block())
    print(f"\n{table(comparison, steps, where(options))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=6, help="of one block each")
    add("--seconds", type=float, default=5, help="about as long as a block takes")
    add("--quick", action="store_true", help="few images and steps, to see that it runs")
    add("--hosts", type=lambda names: names.split(","), help="with one rank on each")
    add("--interface", help="network that synk's machines meet on")
    options = parser.parse_args()
    options.training = [f"--rows={1_000 if options.quick else 20_000}", f"--batch={BATCH}"]
    return options


def in_synk(options: argparse.Namespace) -> Crew:
    """Return ranks of synk, which their leader forks."""
    words = [f"--ranks={1 if options.hosts else N_RANKS}"]
    if options.hosts:
        words += [f"--hosts={','.join(options.hosts)}"]
    if options.interface:
        words += [f"--interface={options.interface}"]
    return Crew(["ddp_in_synk.py", *words, *options.training])


def in_torch(options: argparse.Namespace) -> Crew:
    """Return ranks of torch."""
    hosts = options.hosts or ["127.0.0.1"] * N_RANKS
    place, ranks = f"{hosts[0]}:{free_port(hosts[0])}", f"--ranks={len(hosts)}"
    commands = [
        ["ddp_in_torch.py", ranks, f"--rank={rank}", f"--place={place}", *options.training]
        for rank in range(len(hosts))
    ]
    elsewhere = hosts[1:] if options.hosts else []
    reach = [list] * (len(hosts) - len(elsewhere)) + [partial(there, host) for host in elsewhere]
    return Crew(*commands, reach=reach)


def there(host: str, command: list[str]) -> list[str]:
    """Return the words that start a command on another host."""
    return on(host, command, os.environ, more_ssh_options())


def where(options: argparse.Namespace) -> str:
    """Return what trains."""
    return f"one process on each of {len(options.hosts)} hosts" if options.hosts else f"{N_RANKS} processes"


def check(ours: list[float], theirs: list[float]) -> None:
    """Raise SystemExit if losses differ by more than float32 does after that many steps."""
    error = np.abs(np.subtract(ours, theirs) / theirs).max()
    print(f"losses of {len(ours)} steps agree to {error:.1e}: {ours[0]:.4f} to {ours[-1]:.4f}", flush=True)
    if not error < 1e-4:
        raise SystemExit(f"losses differ:\n{ours}\n{theirs}")


def steps_in(seconds: float, *both: Crew) -> int:
    """Return how many steps the slower crew makes in that time."""
    return max(1, round(seconds * min(AGREE / crew.run(AGREE).seconds for crew in both)))


def table(comparison: pairs.Comparison, steps: int, where: str) -> str:
    """Return images per second, and ratios of times to synk's."""
    rows = []
    for name, times in comparison.seconds.items():
        speed = pairs.spread([BATCH * steps / seconds for seconds in times])
        slower = markdown_tables.in_words(comparison.ratio(name))
        rows.append([name, f"{speed.median:,.0f} ({speed.low:,.0f}–{speed.high:,.0f})", slower])
    header = [
        f"MLP, {where}, batch {BATCH}",
        "images/s (quartiles)",
        "× time of synk (quartiles)",
    ]
    return markdown_tables.aligned(header, rows)


if __name__ == "__main__":
    main()
