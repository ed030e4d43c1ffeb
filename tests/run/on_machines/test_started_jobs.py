"""The machines of one job after the other; nothing is started."""

import pytest

from synk.run.on_machines import started_jobs
from synk.run.on_machines.started_jobs import JobEnded, StartedJobs
from synk.transport.machines.hostfile import Host
from synk.transport.machines.logins import LoginAnswer
from synk.values.errors import SynkStateError


@pytest.fixture
def answers(monkeypatch):
    """Return the hosts that answer by ssh; all of any name are known."""
    found = {"h2", "h3"}
    monkeypatch.setattr(started_jobs, "find_mpirun", lambda: "/bin/mpirun")
    monkeypatch.setattr(started_jobs, "check_known", lambda those: None)
    monkeypatch.setattr(started_jobs, "check_ssh", lambda: None)
    monkeypatch.setattr(started_jobs, "own_address", lambda host, interface, alone: "10.0.0.1")
    monkeypatch.setattr(
        started_jobs,
        "ask",
        lambda those, *rest: {host: LoginAnswer(0 if host in found else 255, "") for host in those},
    )
    monkeypatch.setattr(
        started_jobs, "complaints", lambda those, *rest: [f"{host} is silent" for host in those]
    )
    return found


@pytest.fixture
def jobs(answers, monkeypatch):
    """Return jobs on three hosts, which end at once where one of these does not answer."""
    made = StartedJobs("h1,h2,h3", 2, 2)

    def call():
        if not {host.name for host in made.hosts[1:]} <= answers:
            raise JobEnded("mpirun has ended")
        return made.hosts

    monkeypatch.setattr(made, "_call", call)
    return made


def names(those):
    return [host.name for host in those]


def test_a_job_goes_on_without_the_machines_that_are_lost(jobs, answers):
    answers.discard("h2")
    assert names(jobs.call_left(["h2"])) == ["h1", "h3"]


def test_a_machine_whose_leader_alone_was_lost_stays(jobs):
    assert names(jobs.call_left(["h2"])) == ["h1", "h2", "h3"]


def test_a_machine_that_was_lost_meanwhile_is_left_out_too(jobs, answers):
    answers.clear()
    assert names(jobs.call_left(["h2"])) == ["h1"]


def test_a_first_job_that_cannot_start_names_the_hosts(jobs, answers):
    answers.discard("h3")
    with pytest.raises(SynkStateError, match="do not start\nh2 is silent\nh3 is silent\nmpirun has"):
        jobs.call()


def test_other_hosts_have_as_many_ranks_as_the_script_said(jobs):
    jobs.use("h1,h4:3")
    assert jobs.hosts == (Host("h1", 2), Host("h4", 3))


def test_hosts_that_cannot_be_used_leave_things_as_they_were(jobs, monkeypatch):
    def unknown(those):
        raise ValueError("no address is known")

    monkeypatch.setattr(started_jobs, "check_known", unknown)
    with pytest.raises(ValueError, match="no address"):
        jobs.use("h1,nohost")
    assert names(jobs.hosts) == ["h1", "h2", "h3"]


class Calls:
    """Stands for a listener that leaders have called."""

    def __init__(self, *hellos):
        self._hellos = iter(hellos)

    def accept(self, token, hello, deadline, watch):
        return None, next(self._hellos)


@pytest.mark.parametrize(
    ("called", "found"),
    [
        (["h3", "h2"], [("h3", 4), ("h2", 3)]),
        (["h3", "node-x"], [("h2", 3), ("h3", 4)]),  # not all are known by their names
        (["h1", "h1"], [("h2", 3), ("h3", 4)]),
    ],
)
def test_ranks_are_those_of_the_machine_that_calls_if_its_name_is_known(answers, called, found):
    jobs, taken = StartedJobs("h1,h2:3,h3:4", None, 2), []
    hellos = [{"machine": number, "host": host, "ranks": 8} for number, host in enumerate(called, start=1)]
    jobs._all_called(taken, Calls(*hellos), b"", 0.0, lambda: None)
    assert [(told["host"], told["ranks"]) for _, told in taken] == found
