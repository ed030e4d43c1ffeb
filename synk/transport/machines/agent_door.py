"""The way of the agent to rank 0: a Unix socket without a file, and a token that only this run knows.

    Door (rank 0) -> address, token in the environment of the MPI job -> knock (agent) -> Door.open

Nothing that comes from a stranger is unpickled: it must be of the same user, and say the token first.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct

from synk.transport.commands.interfaces import Disconnected
from synk.transport.machines.links import Watch

ADDRESS, TOKEN = "SYNK_AGENT_ADDRESS", "SYNK_AGENT_TOKEN"  # of the environment
TOKEN_BYTES = 32
LOOK_SECONDS = 0.02
WORD_SECONDS = 1.0  # in which one who knocks says the token
CREDENTIALS = struct.Struct("3i")  # process, user, group


class Door:
    """The place where rank 0 waits for its agent.

    Attributes
    ----------
    environment : dict of str to str
        By which the agent finds the way here.
    """

    def __init__(self) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        name = f"synk-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{name}")
        self._socket.listen()
        self._socket.settimeout(LOOK_SECONDS)
        self.environment = {ADDRESS: name, TOKEN: self._token.hex()}

    def open(self, watch: Watch) -> socket.socket:
        """Wait for the agent and return the connection to it; ``watch()`` is called now and then."""
        while True:
            watch()
            try:
                end, _ = self._socket.accept()
            except TimeoutError:
                continue
            if self._knows(end):
                end.settimeout(None)
                return end
            end.close()

    def _knows(self, end: socket.socket) -> bool:
        if not is_own(end):
            return False
        end.settimeout(WORD_SECONDS)
        try:
            word = end.recv(TOKEN_BYTES, socket.MSG_WAITALL)
        except OSError:
            return False
        return hmac.compare_digest(word, self._token)

    def close(self) -> None:
        """Let nobody in any more."""
        self._socket.close()


def forget_the_way() -> tuple[str, str]:
    """Return address and token from the environment, in which they are no longer."""
    return os.environ.pop(ADDRESS), os.environ.pop(TOKEN)


def knock() -> socket.socket:
    """Return the agent's end of the connection to rank 0, of whom the environment tells for the last time.

    Raises `Disconnected` if rank 0 is gone.
    """
    name, token = forget_the_way()
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.connect(f"\0{name}")
        if is_own(end):
            end.sendall(bytes.fromhex(token))
            return end
    except OSError:
        pass
    end.close()
    raise Disconnected


def is_own(end: socket.socket) -> bool:
    """Return whether the process at the other end is of this user."""
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(told)[1] == os.geteuid())
