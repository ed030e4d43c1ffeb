"""Measure the round trip of a message to a rank on another machine, by a plain TCP connection.

round_trips -> an Echo on every rank: the last listens, rank 0 connects -> seconds
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import synk
from synk.tools.bench.rival_rank import repeat

NBYTES = 4000


class Echo:
    """A rank's part in the measurement: the last rank listens on ``host`` and echoes; rank 0 measures."""

    def __init__(self, rank: int, last: int, host: str):
        self._is_first, self._is_last, self._host = rank == 0, rank == last, host
        self._end: Any = None

    def __call__(self, address: Any, times: int) -> Any:
        """Without ``address``, listen and return the address; with it, return the seconds of a round trip."""
        if address is None:
            self._end = socket.create_server((self._host, 0)) if self._is_last else None
            return self._end and self._end.getsockname()
        if self._is_last:
            return self._answer()
        return self._ask(address, times) if self._is_first else None

    def _ask(self, address: Any, times: int) -> float:
        with socket.create_connection(address) as end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def ask() -> None:
                end.sendall(bytes(NBYTES))
                end.recv(NBYTES, socket.MSG_WAITALL)

            return repeat(ask, times)

    def _answer(self) -> None:
        with self._end.accept()[0] as end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while message := end.recv(NBYTES, socket.MSG_WAITALL):
                end.sendall(message)


def round_trips(n_ranks: int, host: str, times: int) -> Callable[[], float]:
    """Return a candidate that returns the seconds of a round trip to the last rank, on ``host``."""
    echo = synk.on_ranks(Echo, n_ranks - 1, host)
    address = echo(None, times)[-1]
    return lambda: float(echo(address, times)[0])
