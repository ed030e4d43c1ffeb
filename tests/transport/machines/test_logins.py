"""Logins by ssh, by a stand-in for it on PATH, and what is said of hosts that do not start."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from synk.transport.machines.logins import LOOK, NEEDED, LoginAnswer, ask, check_ssh, complaint_of, complaints
from synk.values.errors import SynkStateError

ROOT = Path(__file__).parents[3]

SSH = """#!/bin/sh
# the last two words are the host and the command
for word; do host=$command; command=$word; done
case $host in
  closed) echo "closed: Permission denied (publickey)." >&2; exit 255;;
  silent) exec sleep 60;;
  bare) echo "sh: 1: python: not found" >&2; exit 127;;
  *) echo "$@" > $0.said; sh -c "$command";;
esac
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Put a stand-in for ssh on PATH; return the file of what it was asked."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "ssh.said"


def test_all_hosts_are_asked_at_once_and_within_a_limit(ssh):
    began = time.monotonic()
    found = ask(["silent", "h2", "closed", "silent2"], ["echo", "two  words"], 1.5)
    assert time.monotonic() - began < 10
    assert found["silent"] == LoginAnswer(None, "")
    assert found["h2"] == found["silent2"] == LoginAnswer(0, "two  words")
    assert found["closed"] == LoginAnswer(255, "closed: Permission denied (publickey).")


def test_nobody_is_asked_for_a_password(ssh):
    ask(["h2"], ["true"], 2, ["-F", "my config"])
    assert "-o BatchMode=yes" in ssh.read_text()
    assert ssh.read_text().startswith("-F my config -o ")
    assert "h2 true" in ssh.read_text()


def test_what_keeps_hosts_from_starting_is_said_with_the_remedy(ssh):
    refused, missing = complaints(["closed", "bare", "h2"], 20)
    assert refused.startswith(
        "host closed: closed: Permission denied (publickey).: `ssh -o BatchMode=yes closed"
    )
    assert "host bare: sh: 1: python: not found" in missing
    assert sys.executable in missing


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (LoginAnswer(0, ""), ""),
        (LoginAnswer(None, ""), "host h2 does not answer within 3 s"),
        (LoginAnswer(1, "mpi4py"), "host h2 lacks mpi4py: run there"),
        (LoginAnswer(255, "h2: no route"), "host h2: h2: no route: `ssh"),
    ],
)
def test_a_complaint_names_its_host(answer, complaint):
    assert complaint_of("h2", answer, 3.0).startswith(complaint)
    assert bool(complaint_of("h2", answer, 3.0)) == bool(complaint)


def test_another_project_called_synk_is_not_taken_for_this_one(tmp_path):
    (tmp_path / "synk").mkdir()
    (tmp_path / "synk" / "__init__.py").write_text('name = "synk"\n')
    for name in NEEDED[1:]:
        (tmp_path / f"{name}.py").touch()
    asked = [sys.executable, "-S", "-c", LOOK]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    complaint = complaint_of("h2", LoginAnswer(done.returncode, done.stderr.strip()), 3)
    assert complaint.startswith(
        "host h2 lacks synk, in whose place is another project of this name: run there, in"
    )
    here = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert (here.returncode, here.stderr) == (1, done.stderr)
    (tmp_path / "synk" / "__init__.py").unlink()
    here = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert (here.returncode, here.stderr) == (0, "")


def test_a_machine_without_ssh_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SynkStateError, match="there is no ssh on this machine: install it"):
        check_ssh()
