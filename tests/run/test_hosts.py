"""The machines of one job after the other; nothing is started."""

import pytest

from synk.machines.hostfile import Host
from synk.machines.logins import Answer
from synk.run import hosts
from synk.run.hosts import JobEnded, StartedJobs
from synk.values.errors import SynkStateError


@pytest.fixture
def answers(monkeypatch):
    """Return the hosts that answer by ssh; all of any name are known."""
    found = {"h2", "h3"}
    monkeypatch.setattr(hosts, "find_mpirun", lambda: "/bin/mpirun")
    monkeypatch.setattr(hosts, "check_known", lambda those: None)
    monkeypatch.setattr(hosts, "check_ssh", lambda: None)
    monkeypatch.setattr(hosts, "own_address", lambda host, interface, alone: "10.0.0.1")
    monkeypatch.setattr(
        hosts, "ask", lambda those, *rest: {host: Answer(0 if host in found else 255, "") for host in those}
    )
    monkeypatch.setattr(hosts, "complaints", lambda those, *rest: [f"{host} is silent" for host in those])
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

    monkeypatch.setattr(hosts, "check_known", unknown)
    with pytest.raises(ValueError, match="no address"):
        jobs.use("h1,nohost")
    assert names(jobs.hosts) == ["h1", "h2", "h3"]


class Calls:
    """Stands for a listener that leaders have called."""

    def __init__(self, *hellos):
        self._hellos = iter(hellos)

    def accept(self, token, hello, deadline, watch):
        return None, next(self._hellos)


def test_ranks_are_those_of_the_machine_that_calls_in_whatever_order_they_were_started(answers):
    jobs, called = StartedJobs("h1,h2:3,h3:4,h4", None, 2), []
    hellos = [
        {"machine": number, "host": host, "ranks": 8} for number, host in ((2, "h2"), (1, "h3"), (3, "x"))
    ]
    jobs._all_called(called, Calls(*hellos), b"", 0.0, lambda: None)
    found = {told["machine"]: (told["host"], told["ranks"]) for _, told in called}
    assert found == {1: ("h3", 4), 2: ("h2", 3), 3: ("h4", 8)}
