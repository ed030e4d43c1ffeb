"""Connect the master with leaders on other machines, by TCP sockets that both ends prove to be of one run.

    Listener.accept <- proof, then versions -> connect

Both return the socket and the other's hello. Strangers may connect, say anything or nothing: they are dropped
and keep nobody waiting.
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

CALLER_SECONDS = 5.0  # from a connection to its proof; one that takes longer is dropped
LOOK_SECONDS = 0.2  # between looks at what else may end the wait
CALLERS = 256  # connections without a proof yet, far more than leaders; the oldest makes way for one more

# Without an answer for so long, a connection counts as cut. The kernel also cuts one whose other end reads
# nothing for so long while the buffers are full: who sends much to a process that computes needs a reader
# there.
SILENCE_SECONDS = 2

Address = tuple[str, int]


class Listener:
    """A port of one address of this machine, at which leaders call."""

    def __init__(self, address: str):
        """Listen at a name or number of this machine; the system chooses the port.

        Raises ValueError for an address that means all interfaces, OSError if it is none of this machine.
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
        self._selector = selectors.PollSelector()  # without a descriptor, which forks would share
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._callers: dict[Any, _Exchange] = {}  # by socket, the oldest first
        self._last_refusal = ""

    def accept(
        self, token: bytes, hello: Mapping[str, Any], deadline: float, watch: Watch = lambda: None
    ) -> tuple[socket.socket, Hello]:
        """Return the next connection that is proven, blocking as new ones are, and the caller's hello.

        ``deadline`` is a moment of ``time.monotonic()``; ``watch()`` is called now and then, and raises to
        give up.

        Raises
        ------
        TimeoutError
            If nobody calls and proves the token by then.
        VersionsDiffer
            If who does has other versions.
        """
        check_token(token)
        mine = _introduced(hello)
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
                        return _met(self._release(key.fileobj), mine, heard), heard
        refused = f"; the last that was refused: {self._last_refusal}" if self._last_refusal else ""
        raise TimeoutError(f"nobody of this run called {_said(self.address)} in time{refused}")

    def _welcome(self, token: bytes, mine: Hello) -> None:
        """Take in a caller, the oldest making way where there are too many."""
        try:
            end, place = self._socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return  # who called is gone again
        if len(self._callers) >= CALLERS:
            self._drop(next(iter(self._callers)), "too many called")
        end.setblocking(False)
        dialogue = listen(token, encoded(mine))
        self._callers[end] = _Exchange(end, dialogue, time.monotonic() + CALLER_SECONDS, place[0])
        self._selector.register(end, selectors.EVENT_READ)

    def _hear(self, end: Any) -> Hello | None:
        """Go on with a caller; drop it if it says anything wrong."""
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
        """Close the port, and all connections that are not proven."""
        for end in list(self._callers):
            self._release(end).close()
        self._selector.close()
        self._socket.close()


def connect(
    address: Address, token: bytes, hello: Mapping[str, Any], deadline: float
) -> tuple[socket.socket, Hello]:
    """Call a `Listener` and prove the token to each other; return the connection and the listener's hello.

    ``deadline`` is a moment of ``time.monotonic()``.

    Raises
    ------
    HandshakeRefused
        If the other end is no listener of this run, or does not take this end for one of it.
    VersionsDiffer
        If it has other versions.
    OSError
        If it cannot be reached; TimeoutError if it does not answer in time.
    """
    check_token(token)
    mine = _introduced(hello)
    try:
        end = socket.create_connection(address, timeout=_left(deadline))
        try:
            exchange = _Exchange(end, call(token, encoded(mine)), deadline, address[0])
            while (heard := exchange.step()) is None:
                end.settimeout(_left(deadline))
            return _met(end, mine, heard), heard
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
    """A dialogue over a socket, as far as it has come; it receives no byte beyond its end."""

    def __init__(self, end: socket.socket, dialogue: Dialogue, deadline: float, place: str):
        self.deadline, self.place = deadline, place
        self._end, self._dialogue = end, dialogue
        self._got, self._wanted = b"", 0
        self._sent_until_wanted(next(dialogue))

    def step(self) -> Hello | None:
        """Receive once, and answer what is complete; return the other's hello at the end."""
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
                self._sent_until_wanted(self._dialogue.send(got))
        except StopIteration as ended:
            return ended.value
        return None

    def _sent_until_wanted(self, said: bytes | int) -> None:
        while isinstance(said, bytes):
            self._end.sendall(said)  # fits in the buffer of a new socket
            said = next(self._dialogue)
        self._wanted = said


def _met(end: socket.socket, mine: Hello, theirs: Hello) -> socket.socket:
    """Return a connection that both ends have proven, ready for commands; close it if versions differ."""
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


def _introduced(hello: Mapping[str, Any]) -> Hello:
    return {"host": socket.gethostname(), **hello, "versions": versions()}


def _left(deadline: float) -> float:
    """Return the seconds until a deadline."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _said(address: Address) -> str:
    return f"{address[0]} port {address[1]}"


def _named(error: OSError, place: str) -> OSError:
    """Return an error of the same kind that names the place."""
    return OSError(error.errno, f"{error.strerror or error}: {place}")
