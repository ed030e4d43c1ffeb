"""The same training everywhere: in one process, on one machine, on two hosts, and in processes of mpirun.

The hosts are name spaces of this machine. Where none can be made, two processes of one MPI job stand for
them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.machines import hosts as name_spaces
from support.machines.mpi_group import missing
from synk.transport.machines.mpi_library import find_mpirun

SCRIPT = Path(__file__).parent / "training.py"
SECONDS = 100
OF_THE_MACHINE = ("report",)
OF_RANKS = ("noise", "set", "reduced", "summed", "one", "lengths", "shapes", "joined", "turned", "parts")
OF_RANKS += ("everywhere", "large", "counts", "total", "pids")
# Ranks of one machine and machines add in other orders, and BLAS rounds by where an array lies in memory: no
# page promises the same bits. Integers, booleans and texts are the same.
TO_ROUNDING = {"rtol": 1e-9, "atol": 1e-9}

MPIRUN = ["mpirun", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
NETWORK = ["--prtemca", "prte_if_include", name_spaces.INTERFACE]
NETWORK += ["--mca", "btl_tcp_if_include", name_spaces.INTERFACE]
HERE = ["--host", "localhost:2", "-n", "1"]

NO_HOSTS, NO_MPI = name_spaces.missing(), missing()

if not NO_MPI:
    MPIRUN[:1] = [find_mpirun(), *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return the path of a file with rows, the last number of which is a sum of the others."""
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    values = np.random.default_rng(1).normal(size=(64, 5))
    values[:, 4] = values[:, :4] @ np.arange(4.0)
    np.save(path, values)
    return path


def on(host):
    return ["--host", f"{host}:1", "-n", "1"]


def words(rows, out, **options):
    options = {"threads": 1, **options}  # on which BLAS's bits depend; machines with fewer ranks have more
    return [sys.executable, "-X", "faulthandler", str(SCRIPT), str(rows), str(out), json.dumps(options)]


def read(out):
    with np.load(out) as found:
        return dict(found)


@pytest.fixture(scope="module")
def three_ranks(rows, tmp_path_factory):
    """Return what comes out of three ranks on this machine."""
    out = tmp_path_factory.mktemp("three") / "out.npz"
    subprocess.run(words(rows, out, n_parallel=3), check=True, timeout=SECONDS)
    return read(out)


def same_numbers(found, expected, but=()):
    names = [name for name in expected if not name.startswith((*OF_THE_MACHINE, *but))]
    assert len(names) > 20
    assert found.keys() == expected.keys()
    for name in names:
        if expected[name].dtype.kind == "f":
            np.testing.assert_allclose(found[name], expected[name], **TO_ROUNDING, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.slow
def test_one_process_has_the_numbers_of_three_ranks(rows, tmp_path, three_ranks):
    subprocess.run(words(rows, tmp_path / "out.npz", n_parallel=1), check=True, timeout=SECONDS)
    same_numbers(three_ranks, read(tmp_path / "out.npz"), OF_RANKS)


@pytest.mark.slow
def test_a_script_that_forks_over_hosts_has_the_numbers_of_one_machine(rows, tmp_path, three_ranks, hosts):
    options = {"hosts": "h1:1,h2:2", "interface": name_spaces.INTERFACE}
    ended = hosts.run("h1", words(rows, tmp_path / "out.npz", **options), SECONDS)
    assert ended.returncode == 0, ended.stdout
    found = read(tmp_path / "out.npz")
    same_numbers(found, three_ranks)
    report = str(found["report"])
    assert "rank 1 on host h2: LookupError: a seven" in report
    assert "Worker 1 of 3 on host h2" in report
    assert "in perform" in report
    assert "h2: " in ended.stdout  # the topology
    assert hosts.left("h1") == hosts.left("h2") == []


@pytest.mark.slow
def test_ten_rules_have_the_same_bits_whether_the_update_may_be_divided_or_not(hosts):
    options = {"hosts": "h1:1,h2:2", "interface": name_spaces.INTERFACE}
    command = [sys.executable, str(SCRIPT.with_name("rules.py")), json.dumps(options)]
    ended = hosts.run("h1", command, 3 * SECONDS)  # for twenty functions to be compiled
    assert ended.returncode == 0, ended.stdout
    assert len(ended.stdout.splitlines()) == 10, ended.stdout
    assert hosts.left("h1") == hosts.left("h2") == []


@pytest.mark.slow
def test_a_script_that_mpirun_starts_has_the_numbers_of_one_machine(request, rows, tmp_path, three_ranks):
    assert not NO_MPI, f"several machines cannot be tested without MPI: {NO_MPI}"
    one, two = (words(rows, tmp_path / "out.npz", n_parallel=n) for n in (1, 2))
    if NO_HOSTS:
        command = [*MPIRUN, *HERE, *one, ":", *HERE, *two]
        ended = subprocess.run(command, stdout=-1, stderr=-2, text=True, timeout=SECONDS)
    else:
        hosts = request.getfixturevalue("hosts")
        ssh = ["--prtemca", "plm_ssh_args", f"-F {hosts.folder}/ssh_config"]
        command = [*MPIRUN, *NETWORK, *ssh, *on("h1"), *one, ":", *on("h2"), *two]
        ended = hosts.run("h1", command, SECONDS)
        assert hosts.left("h1") == hosts.left("h2") == []
    assert ended.returncode == 0, ended.stdout
    found = read(tmp_path / "out.npz")
    same_numbers(found, three_ranks)
    assert "rank 1 on host" in str(found["report"])
