"""A launcher with Horovod's words."""

import subprocess
import sys

import pytest

from synk.__main__ import main
from synk.run.launch.fork_arguments import with_environment
from synk.run.session.run_command import divide_ranks, environment_variables
from synk.transport.machines.hostfile import Host


@pytest.mark.parametrize(
    ("n", "hosts", "variables"),
    [
        (4, "h1:2,h2:2", {"SYNK_HOSTS": "h1:2,h2:2"}),
        (3, "h1:2,h2:2", {"SYNK_HOSTS": "h1:2,h2:1"}),
        (2, "h1:2,h2:2", {"SYNK_HOSTS": "h1:2"}),
        (5, "h1,h2", {"SYNK_HOSTS": "h1:3,h2:2"}),
        (None, "h1,h2:4", {"SYNK_HOSTS": "h1,h2:4"}),
        (4, None, {"SYNK_RANKS": "4"}),
        (None, None, {}),
    ],
)
def test_ranks_are_dealt_out_over_the_slots(n, hosts, variables):
    assert environment_variables(n, hosts, None) == variables


def test_the_interface_is_told_with_the_hosts():
    assert environment_variables(None, "h1,h2", "eth0") == {"SYNK_HOSTS": "h1,h2", "SYNK_INTERFACE": "eth0"}


def test_a_hostfile_will_do(tmp_path):
    (tmp_path / "hosts").write_text("h1 slots=2\nh2 slots=2\n")
    assert environment_variables(3, str(tmp_path / "hosts"), None) == {"SYNK_HOSTS": "h1:2,h2:1"}


def test_more_ranks_than_slots_are_refused():
    with pytest.raises(ValueError, match="-np 5 is more than the 4 slots"):
        divide_ranks(5, (Host("h1", 3), Host("h2")))
    with pytest.raises(ValueError, match="-np 0 is no number"):
        environment_variables(0, "h1", None)


def test_what_the_script_says_comes_first():
    environ = {"SYNK_HOSTS": "h1,h2", "SYNK_INTERFACE": "eth0", "SYNK_RANKS": "3"}
    assert with_environment(None, None, None, environ) == (None, "h1,h2", "eth0")
    assert with_environment(2, "h3", None, environ) == (2, "h3", None)
    assert with_environment(None, None, None, {"SYNK_RANKS": "3"}) == (3, None, None)
    assert with_environment(2, None, None, {"SYNK_RANKS": "3"}) == (2, None, None)
    assert with_environment(None, None, None, {}) == (None, None, None)
    for environ in ({"SYNK_HOSTS": "h1,h2"}, {"OMPI_COMM_WORLD_SIZE": "2"}):
        assert with_environment(None, None, "eth0", environ)[2] == "eth0"
    with pytest.raises(
        ValueError, match="interface='eth0' is the network between several machines: pass hosts"
    ):
        with_environment(2, None, "eth0", {})
    with pytest.raises(ValueError, match="--interface eth0 is the network between several machines"):
        environment_variables(2, None, "eth0")
    with pytest.raises(ValueError, match="SYNK_RANKS='x'"):
        with_environment(None, None, None, {"SYNK_RANKS": "x"})


def test_a_script_has_the_ranks_and_arguments_that_it_was_given(tmp_path):
    (tmp_path / "train.py").write_text("import sys, synk\nprint(synk.fork(device='cpu'), sys.argv[1:])\n")
    command = [sys.executable, "-m", "synk", "run", "-np", "2", "train.py", "--epochs", "3"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.stdout == "2 ['--epochs', '3']\n", ended.stderr


def test_a_wrong_word_is_the_callers_mistake(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "-np", "9", "-H", "h1:2", "train.py"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("-np 9 is more than the 2 slots of the hosts\n")
