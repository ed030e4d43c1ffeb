"""Deal out over hosts the ranks of scripts and tests that are written for one machine.

    python tests/support/machines/dealing.py h1,h2,h3 10.77.0.0/24 script.py [its arguments]

The first host is this machine.
"""

import runpy
import sys
from pathlib import Path

from synk.run.on_machines import started_jobs
from synk.run.session import current
from synk.values.rows import split

START_SECONDS = 120.0  # for hosts to call that share the cores of one machine


def deal(fork, hosts, interface):
    """Return a ``fork`` that spreads ranks over all hosts; with fewer ranks than hosts it forks here."""
    started_jobs.CALL_SECONDS = START_SECONDS

    def dealt(n_parallel, device, timeout, given, network, **options):
        n_ranks = n_parallel or max(2, len(hosts))
        if given is None and n_ranks >= len(hosts) and device in (None, "cpu"):
            sizes = [stop - start for start, stop in split(n_ranks, len(hosts))]
            given = ",".join(f"{host}:{size}" for host, size in zip(hosts, sizes, strict=True))
            n_parallel, network = None, interface
        return fork(n_parallel, device, timeout, given, network, **options)

    return dealt


def main(hosts, interface, *script):
    current.fork = deal(current.fork, hosts.split(","), interface)
    sys.argv[:] = script
    sys.path[0] = str(Path(script[0]).parent)
    runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
