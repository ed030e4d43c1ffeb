"""Open TCP connections between processes of one run, each end of which proves that it belongs to the run.

    Listener.accept <- proof, then versions -> connect

Both functions return the socket and the hello of the other end: facts about it, such as its host's name.
A process that is not of the run may connect, and send anything or nothing: it is dropped, and delays no one.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from synk.transport.machines.links import Watch
from synk.transport.machines.proof import (
    Dialogue,
    HandshakeRefused,
    Hello,
    call,
    check_token,
    encoded,
    listen,
)
from synk.transport.machines.versions import compare, versions

CALLER_SECONDS = 5.0  # within which a caller must have proven the token, else it is dropped
LOOK_SECONDS = 0.2  # between two calls of `watch` during a wait
CALLERS = 256  # connections without a proof, far more than leaders; beyond, the oldest is dropped

# A connection whose other end does not answer for so long counts as cut. The kernel also cuts a connection
# whose other end does not read for so long while buffers are full. So a process that receives much while it
# computes needs a thread that reads.
SILENCE_SECONDS = 2

Address = tuple[str, int]


class Listener:
    """A listening TCP socket at one address of this machine, to which leaders connect."""

    def __init__(self, address: str):
        """Listen at an address of this machine, given as a name or in numbers; the system chooses the port.

        Raises ValueError for an address that means all interfaces, OSError for one of another machine.
        """
        try:
            family, _, _, _, place = socket.getaddrinfo(address or "0.0.0.0", 0, type=socket.SOCK_STREAM)[0]
            number = str(place[0])
            if ip_address(number).is_unspecified:
                raise ValueError(
                    f"address={address!r} means all networks; name one of this machine's: `ip addr`"
                )
            self._socket = socket.create_server((number, 0), family=family, backlog=CALLERS)
        except OSError as error:
            raise _named(error, address) from None
        self._socket.setblocking(False)
        self.address: Address = self._socket.getsockname()[:2]
        self._selector = selectors.PollSelector()  # unlike epoll, it has no descriptor that forks would share
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._callers: dict[Any, _Exchange] = {}  # by socket, the oldest first
        self._last_refusal = ""

    def accept(
        self, token: bytes, hello: Mapping[str, Any], deadline: float, watch: Watch = lambda: None
    ) -> tuple[socket.socket, Hello]:
        """Wait for the next caller that proves the token; return the connection to it, and its hello.

        The connection is in blocking mode. ``hello`` is sent to the caller. ``deadline`` is a time of
        ``time.monotonic()``; ``watch()`` is called several times a second, and may raise to end the wait.

        Raises
        ------
        TimeoutError
            If no caller proves the token by the deadline.
        VersionsDiffer
            If the caller that does has other versions of Python or of packages.
        """
        check_token(token)
        mine = _with_host_and_versions(hello)
        while (now := time.monotonic()) < deadline:
            watch()
            self._drop_late(now)
            ends = [exchange.deadline for exchange in self._callers.values()]
            for key, _ in self._selector.select(min([deadline, now + LOOK_SECONDS, *ends]) - now):
                if key.fileobj is self._socket:
                    self._welcome(token, mine)
                elif key.fileobj in self._callers:
                    heard = self._hear(key.fileobj)
                    if heard is not None:
                        return _compared(self._release(key.fileobj), mine, heard), heard
        refused = f"; the last that was refused: {self._last_refusal}" if self._last_refusal else ""
        raise TimeoutError(f"nobody of this run called {_said(self.address)} in time{refused}")

    def _welcome(self, token: bytes, mine: Hello) -> None:
        """Accept a new caller and begin the handshake with it; drop the oldest if there are too many."""
        try:
            end, place = self._socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return  # the caller has hung up already
        if len(self._callers) >= CALLERS:
            self._drop(next(iter(self._callers)), "too many called")
        end.setblocking(False)
        dialogue = listen(token, encoded(mine))
        self._callers[end] = _Exchange(end, dialogue, time.monotonic() + CALLER_SECONDS, place[0])
        self._selector.register(end, selectors.EVENT_READ)

    def _hear(self, end: Any) -> Hello | None:
        """Go on with the handshake of a caller, return its hello at the end; drop it on any error."""
        try:
            return self._callers[end].step()
        except (OSError, ValueError) as error:
            self._drop(end, str(error))
            return None

    def _drop_late(self, now: float) -> None:
        for end in [end for end, exchange in self._callers.items() if exchange.deadline <= now]:
            self._drop(end, f"it took longer than {CALLER_SECONDS:g} s")

    def _drop(self, end: Any, why: str) -> None:
        self._last_refusal = f"{self._callers[end].place}: {why}"
        self._release(end).close()

    def _release(self, end: Any) -> socket.socket:
        self._selector.unregister(end)
        del self._callers[end]
        return end

    def close(self) -> None:
        """Stop listening, and close the connections to callers that have not proven the token."""
        for end in list(self._callers):
            self._release(end).close()
        self._selector.close()
        self._socket.close()


def connect(
    address: Address, token: bytes, hello: Mapping[str, Any], deadline: float
) -> tuple[socket.socket, Hello]:
    """Connect to a `Listener`, and prove the token to each other; return the connection and its hello.

    ``hello`` is sent to the listener. ``deadline`` is a time of ``time.monotonic()``.

    Raises
    ------
    HandshakeRefused
        If the other end does not prove that it belongs to this run, or hangs up since this end does not.
    VersionsDiffer
        If the other end has other versions of Python or of packages.
    OSError
        If the listener cannot be reached; TimeoutError if it does not answer in time.
    """
    check_token(token)
    mine = _with_host_and_versions(hello)
    try:
        end = socket.create_connection(address, timeout=_left(deadline))
        try:
            exchange = _Exchange(end, call(token, encoded(mine)), deadline, address[0])
            while (heard := exchange.step()) is None:
                end.settimeout(_left(deadline))
            return _compared(end, mine, heard), heard
        except BaseException:
            end.close()
            raise
    except TimeoutError:
        raise TimeoutError(f"{_said(address)} did not answer in time") from None
    except HandshakeRefused as error:
        raise HandshakeRefused(f"{_said(address)} is not believed: {error}") from None
    except OSError as error:
        raise _named(error, _said(address)) from None


class _Exchange:
    """Carries out a `Dialogue` over a socket, step by step.

    It receives no byte beyond the end of the dialogue, for these bytes belong to the messages behind it.
    """

    def __init__(self, end: socket.socket, dialogue: Dialogue, deadline: float, place: str):
        self.deadline, self.place = deadline, place
        self._end, self._dialogue = end, dialogue
        self._got, self._wanted = b"", 0
        self._send_until_wanted(next(dialogue))

    def step(self) -> Hello | None:
        """Receive once, and send the answers that are due; return the other's hello at the end."""
        try:
            received = self._end.recv(self._wanted - len(self._got))
        except BlockingIOError:
            return None
        if not received:
            raise HandshakeRefused("it hung up; a listener does where a token is not that of its run")
        self._got += received
        try:
            while len(self._got) == self._wanted:
                got, self._got = self._got, b""
                self._send_until_wanted(self._dialogue.send(got))
        except StopIteration as ended:
            return ended.value
        return None

    def _send_until_wanted(self, said: bytes | int) -> None:
        """Send what the dialogue yields until it yields a number: how many bytes it wants to receive."""
        while isinstance(said, bytes):
            self._end.sendall(said)  # fits in the buffer of a new socket
            said = next(self._dialogue)
        self._wanted = said


def _compared(end: socket.socket, mine: Hello, theirs: Hello) -> socket.socket:
    """Compare the versions of both ends and set socket options; close the connection if that raises."""
    try:
        compare(mine, theirs)
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            end.setsockopt(socket.IPPROTO_TCP, option, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENCE_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
        return end
    except BaseException:
        end.close()
        raise


def _with_host_and_versions(hello: Mapping[str, Any]) -> Hello:
    return {"host": socket.gethostname(), **hello, "versions": versions()}


def _left(deadline: float) -> float:
    """Return the seconds until a deadline; raise TimeoutError if it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _said(address: Address) -> str:
    return f"{address[0]} port {address[1]}"


def _named(error: OSError, place: str) -> OSError:
    """Return an error with the same errno, and with the address in its message."""
    return OSError(error.errno, f"{error.strerror or error}: {place}")
