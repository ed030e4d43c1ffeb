"""Commands that start one process a machine: nothing is run."""

from pathlib import Path

import pytest

from synk.transport.machines import mpi_library, mpirun
from synk.transport.machines.mpi_library import MpiMissing, find_mpirun, load_mpi
from synk.transport.machines.mpirun import launch, more_ssh_options, on

USUAL = {
    "mpirun": "/usr/bin/mpirun",
    "hosts": ["alpha", "10.0.0.2"],
    "program": ["/usr/bin/python", "-m", "synk"],
    "environment": {"HOME": "/home/me"},
    "variables": {"SYNK_TOKEN": "secret"},
    "folder": "/tmp",
    "as_root": False,
}


def words(**changes):
    """Return the command, with a word that no argument has at either end."""
    return " ".join(["^", *launch(**USUAL | changes).command, "$"])


def test_one_process_a_host_is_started_in_their_order():
    command = words()
    assert command.startswith("^ /usr/bin/mpirun ")
    assert " --host alpha:1,10.0.0.2:1 --map-by ppr:1:node --bind-to none " in command
    assert command.endswith(" /usr/bin/python -m synk $")


def test_several_processes_may_be_started_on_each_host():
    assert " --host alpha:3,10.0.0.2:3 --map-by ppr:3:node " in words(n_each=3)


def test_values_of_variables_are_not_in_the_command():
    found = launch(**USUAL)
    assert "secret" not in " ".join(found.command)
    assert " -x SYNK_TOKEN " in words()
    assert found.environment.items() >= {"HOME": "/home/me", "SYNK_TOKEN": "secret"}.items()


def test_a_restart_in_slurm_does_not_wait_for_the_step_of_a_lost_machine():
    assert launch(**USUAL).environment["SLURM_OVERLAP"] == "1"


def test_a_machine_is_asked_by_ssh_without_a_question():
    command = on("beta", ["true"], {"HOME": "/home/me"}, ["-F /etc/mine", "-v"])
    assert command[:6] == ["ssh", "-F", "/etc/mine", "-v", "-o", "BatchMode=yes"]
    assert command[-2:] == ["beta", "true"]


def test_in_slurm_a_machine_is_asked_by_a_step_as_mpirun_starts_there():
    command = on("beta", ["true"], {"SLURM_JOBID": "7"}, ["-F /etc/mine"])
    assert command[0] == "srun"
    assert {"--overlap", "--nodelist=beta", "--ntasks=1"} < set(command)
    assert command[-1] == "true"


def test_a_guard_whose_words_a_shell_would_take_apart_is_left_out(monkeypatch):
    monkeypatch.setattr(mpirun, "GUARDED", ("/with space/python", "sessions.py", "prted"))
    assert "prte_launch_agent" not in words()


def test_logins_are_not_limited_to_less_than_all_hosts():
    assert " plm_ssh_num_concurrent 200 " in words(hosts=[f"h{number}" for number in range(200)])


def test_daemons_on_other_machines_are_started_beside_a_guard_but_not_in_slurm():
    command = launch(**USUAL).command
    agent = command[command.index("prte_launch_agent") + 1].split()
    assert Path(agent[-2]).is_file()
    assert agent[-1] == "prted"
    assert "prte_launch_agent" not in words(environment={"SLURM_JOBID": "7"})


def test_ssh_never_asks():
    (arguments,) = [word for word in launch(**USUAL, ssh_options=["-F /etc/mine"]).command if "-o" in word]
    assert "-o BatchMode=yes" in arguments
    assert "-o ConnectTimeout=5" in arguments
    assert arguments.startswith("-F /etc/mine ")  # of an option that is given twice ssh takes the first


def test_root_is_said_only_where_it_is():
    assert "--allow-run-as-root" not in words()
    assert " --allow-run-as-root " in words(as_root=True)


def test_an_interface_is_for_launching_and_for_arrays():
    assert "if_include" not in words()
    told = words(interface="10.0.0.0/24")
    assert " --prtemca prte_if_include 10.0.0.0/24 " in told
    assert " --mca btl_tcp_if_include 10.0.0.0/24 " in told


def test_the_environments_own_mpirun_is_taken_first(tmp_path, monkeypatch):
    for folder in ("own", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").touch(0o755)
    monkeypatch.setattr(mpi_library.sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_mpirun() == str(tmp_path / "own" / "mpirun")
    (tmp_path / "own" / "mpirun").unlink()
    assert find_mpirun() == str(tmp_path / "path" / "mpirun")
    (tmp_path / "path" / "mpirun").unlink()
    with pytest.raises(MpiMissing, match=r"pip install 'synk-pytensor\[mpi\]'"):
        find_mpirun()


@pytest.mark.parametrize("error", [ModuleNotFoundError("no mpi4py"), RuntimeError("cannot load MPI library")])
def test_what_is_missing_is_named_with_the_remedy(monkeypatch, error):
    class Refusing:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("mpi4py"):
                raise error

    monkeypatch.setattr(mpi_library.sys, "meta_path", [Refusing()])
    for name in [name for name in mpi_library.sys.modules if name.startswith("mpi4py")]:
        monkeypatch.delitem(mpi_library.sys.modules, name)
    with pytest.raises(MpiMissing, match=r"pip install 'synk-pytensor\[mpi\]' \(.*MPI|mpi4py"):
        load_mpi()


def test_the_user_s_options_of_ssh_are_words():
    assert more_ssh_options({}) == []
    assert more_ssh_options({"SYNK_SSH_OPTIONS": " -F /etc/mine  -v"}) == ["-F", "/etc/mine", "-v"]


@pytest.mark.parametrize("text", ["-F 'mine", '-o "ProxyCommand=ssh jump"', "-F my\\ config"])
def test_options_of_ssh_that_mpirun_would_take_apart_are_refused(text):
    with pytest.raises(
        ValueError, match="SYNK_SSH_OPTIONS=.* has quotes, .*: write such options into a file"
    ):
        more_ssh_options({"SYNK_SSH_OPTIONS": text})
