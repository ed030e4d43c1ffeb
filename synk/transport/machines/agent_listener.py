"""Connect the agent to rank 0, by an abstract Unix socket and a secret token of this run.

    AgentListener (rank 0) -> address, token in the environment of the MPI job -> connect_to_rank_0 (agent)
        -> AgentListener.accept -> connection

Rank 0 unpickles nothing before the other end has proven to be of the same user, and has sent the token.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct

from synk.transport.commands.interfaces import Disconnected
from synk.transport.machines.links import Watch

ADDRESS, TOKEN = "SYNK_AGENT_ADDRESS", "SYNK_AGENT_TOKEN"  # environment variables of the MPI job
TOKEN_BYTES = 32
LOOK_SECONDS = 0.02  # between two calls of `watch` during the wait
WORD_SECONDS = 1.0  # within which a process that connects must send the token
CREDENTIALS = struct.Struct("3i")  # process, user, group


class AgentListener:
    """The listening socket at which rank 0 accepts its agent.

    Attributes
    ----------
    environment : dict of str to str
        Variables for the MPI job: from them the agent knows the address and the token.
    """

    def __init__(self) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES)
        name = f"synk-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{name}")
        self._socket.listen()
        self._socket.settimeout(LOOK_SECONDS)
        self.environment = {ADDRESS: name, TOKEN: self._token.hex()}

    def accept(self, watch: Watch) -> socket.socket:
        """Wait for the agent and return the connection to it.

        ``watch()`` is called several times a second; it may raise to end the wait.
        """
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
        """Return whether the process that has connected is of the same user, and sends the token in time."""
        if not is_own(end):
            return False
        end.settimeout(WORD_SECONDS)
        try:
            word = end.recv(TOKEN_BYTES, socket.MSG_WAITALL)
        except OSError:
            return False
        return hmac.compare_digest(word, self._token)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def pop_address_and_token() -> tuple[str, str]:
    """Remove the address and the token from the environment, and return them."""
    return os.environ.pop(ADDRESS), os.environ.pop(TOKEN)


def connect_to_rank_0() -> socket.socket:
    """Connect to rank 0 and return the agent's end of the connection.

    The address and the token are removed from the environment, so that other programs do not inherit them.
    Raises `Disconnected` if rank 0 has ended.
    """
    name, token = pop_address_and_token()
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
    """Return whether the process at the other end of a Unix socket runs as the same user as this one."""
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(credentials)[1] == os.geteuid())
