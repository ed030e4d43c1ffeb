"""Start the processes of a rival, a crew, which wait for requests between rounds.

    RivalProcesses(commands) -> meet -> ask(request) -> every member's answer ... close

Each process, a member of the crew, connects to a socket of this process, and sleeps until it gets a request,
so that the crews do not disturb each other.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds for a crew to connect, and for an answer
BROKE_DOWN = "broke down"
LEAVE_SECONDS = 5.0  # for a process to end after its connection was closed, or it got a signal


class CrewLost(Exception):
    """A crew did not start, broke down or does not answer; the message says which, and why."""


class RivalProcesses:
    """The processes of one rival, as a context that ends them; messages call the rival ``name``.

    They are started at once, and `meet` waits for them, so that several crews can start at the same time.
    ``commands(folder)`` returns the command lines of the processes, which may write files to ``folder``;
    ``n_members`` processes connect to the socket ``address(folder)``. ``environment`` is added to their
    variables.
    """

    def __init__(
        self,
        name: str,
        commands: Callable[[str], Sequence[Sequence[str]]],
        n_members: int,
        environment: Mapping[str, str],
    ):
        self.name = name
        self.about = ""  # name and version of the library, which the members send when they connect
        self._n_members = n_members
        self._members: list[Connection] = []
        self._kept = contextlib.ExitStack()
        folder = self._kept.enter_context(tempfile.TemporaryDirectory(prefix="synk-bench-"))
        self._said = Path(folder, "said")
        self._door = self._kept.enter_context(socket.socket(socket.AF_UNIX))
        self._door.bind(address(folder))
        self._door.listen(n_members)
        self._processes = [self._start(command, environment) for command in commands(folder)]

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._said.open("ab") as said:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **environment},
                start_new_session=True,  # ^C reaches this process only, which then ends them in order
            )

    def __enter__(self) -> RivalProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def meet(self) -> None:
        """Wait until all members have connected; raise CrewLost if a process ends, or after `PATIENCE`."""
        deadline = time.monotonic() + PATIENCE
        self._door.settimeout(0.05)
        arrived: dict[int, Connection] = {}
        while len(arrived) < self._n_members:
            with contextlib.suppress(TimeoutError):
                member = Connection(self._door.accept()[0].detach())
                self._members.append(member)  # closed with the others, whatever happens
                rank, self.about = self._receive(member)
                arrived[rank] = member
            if any(process.poll() is not None for process in self._processes):
                raise self._lost("did not start")
            if time.monotonic() > deadline:
                raise self._lost(f"did not start in {PATIENCE:g} s")
        self._members = [arrived[rank] for rank in sorted(arrived)]

    def ask(self, *request: Any) -> list[Any]:
        """Send a request to all members at once and return their answers, in order of rank.

        Raises CrewLost if one does not answer.
        """
        for member in self._members:
            self._send(member, request)
        return [self._receive(member) for member in self._members]

    def ask_first(self, *request: Any) -> Any:
        """Send a request to rank 0 alone and return its answer."""
        self._send(self._members[0], request)
        return self._receive(self._members[0])

    def slowest(self, *request: Any) -> float:
        """Send a request to all members at once and return the longest of their times, in seconds."""
        return max(self.ask(*request))

    def _send(self, member: Connection, request: Any) -> None:
        try:
            member.send(request)
        except OSError:
            raise self._lost(BROKE_DOWN) from None

    def _receive(self, member: Connection) -> Any:
        try:
            if not member.poll(PATIENCE):
                raise self._lost(f"did not answer in {PATIENCE:g} s")
            return member.recv()
        except (EOFError, OSError):
            raise self._lost(BROKE_DOWN) from None

    def _lost(self, how: str) -> CrewLost:
        """Return the error to raise, with the last line that the members printed."""
        deadline = time.monotonic() + LEAVE_SECONDS
        # A member that broke down may still be printing the reason.
        while how == BROKE_DOWN and time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.01)
        lines = [line for line in self._said.read_text(errors="replace").splitlines() if line.strip(" -=*")]
        return CrewLost(f"{self.name} {how}" + (f": {lines[-1].strip()}" if lines else ""))

    def close(self) -> None:
        """Close all connections, upon which members exit; terminate, then kill, those that do not."""
        for member in self._members:
            member.close()  # the end of the connection tells them to leave
        self._members = []
        for stop in (lambda process: None, subprocess.Popen.terminate, subprocess.Popen.kill):
            for process in self._processes:
                stop(process)
            deadline = time.monotonic() + LEAVE_SECONDS
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        self._processes = []
        self._kept.close()


class GroupCrew(RivalProcesses):
    """A crew on several machines; only its rank 0 is connected, and forwards requests and answers."""

    def ask(self, *request: Any) -> list[Any]:
        (answers,) = super().ask(*request)
        return list(answers)


def address(folder: str) -> str:
    """Return the path of the socket in a crew's folder."""
    return f"{folder}/door"
