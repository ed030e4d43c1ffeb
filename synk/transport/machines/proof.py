"""Both ends of a new connection prove that they know the token of the run, before either believes the other.

    caller                                 listener
    greeting, nonce                  ->
                                     <-    greeting, nonce
    hello, proof of both nonces      ->
                                     <-    hello, proof of both nonces and both hellos

A proof is HMAC-SHA256 with the token. It covers who gives it and both nonces, so none fits another
connection or the other direction. A hello is JSON, and is not even parsed before its proof is right.

No socket is touched here. A dialogue is a generator: it yields bytes to send, or the number of bytes that it
wants to receive next, and returns the other end's hello.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
from collections.abc import Generator
from typing import Any

from synk.values.errors import SynkError

TOKEN_BYTES = 32
GREETING = b"synk handshake 1\n"  # the number changes with the format of the messages
NONCE_BYTES = 32
PROOF_BYTES = 32  # of SHA-256
LENGTH = struct.Struct("!H")  # bytes of a hello
HELLO_BYTES = 4096  # at most

Hello = dict[str, Any]  # of JSON
Dialogue = Generator["bytes | int", bytes, Hello]


class HandshakeRefused(SynkError, ConnectionError):
    """The other end of a connection did not prove that it belongs to this run."""


def new_token() -> bytes:
    """Return a new secret token; every process that knows it can join the run."""
    return secrets.token_bytes(TOKEN_BYTES)


def check_token(token: bytes) -> None:
    """Raise ValueError if a token has the wrong length: an empty one, say, would prove nothing."""
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"a token has {TOKEN_BYTES} bytes, this one {len(token)}; make it by new_token()")


def encoded(hello: Hello) -> bytes:
    """Return the bytes that are sent for a hello: its length, then JSON."""
    text = json.dumps(hello).encode()
    if len(text) > HELLO_BYTES:
        raise ValueError(f"a hello of {len(text)} bytes, of at most {HELLO_BYTES}: send the rest afterwards")
    return LENGTH.pack(len(text)) + text


def call(token: bytes, said: bytes) -> Dialogue:
    """Return the caller's side of the dialogue; ``said`` is its hello, as `encoded` returns it."""
    own = secrets.token_bytes(NONCE_BYTES)
    yield GREETING + own
    nonces = own + (yield from _greeted())
    yield said + _proof(token, b"caller", nonces + said)
    heard = yield from _hello()
    yield from _proven(token, b"listener", nonces + said + heard)
    return _decoded(heard)


def listen(token: bytes, said: bytes) -> Dialogue:
    """Return the listener's side of the dialogue; ``said`` is its hello, as `encoded` returns it.

    The listener sends nothing before it has received the caller's greeting.
    """
    theirs = yield from _greeted()
    own = secrets.token_bytes(NONCE_BYTES)
    nonces = theirs + own
    yield GREETING + own
    heard = yield from _hello()
    yield from _proven(token, b"caller", nonces + heard)
    yield said + _proof(token, b"listener", nonces + heard + said)
    return _decoded(heard)


def _greeted() -> Generator[bytes | int, bytes, bytes]:
    """Receive a greeting; return the nonce that came with it."""
    if (yield len(GREETING)) != GREETING:
        raise HandshakeRefused("it does not greet as synk does, or as another version of it")
    return (yield NONCE_BYTES)


def _hello() -> Generator[bytes | int, bytes, bytes]:
    """Receive the bytes of a hello, whose sender has proven nothing yet."""
    length = yield LENGTH.size
    (size,) = LENGTH.unpack(length)
    if not 0 < size <= HELLO_BYTES:
        raise HandshakeRefused(f"its hello would have {size} bytes, of at most {HELLO_BYTES}")
    return length + (yield size)


def _proven(token: bytes, who: bytes, said: bytes) -> Generator[bytes | int, bytes, None]:
    """Receive a proof for the bytes ``said``; raise HandshakeRefused if it is wrong."""
    proof = yield PROOF_BYTES
    if not hmac.compare_digest(proof, _proof(token, who, said)):
        raise HandshakeRefused("it does not prove that it knows the token of this run")


def _proof(token: bytes, who: bytes, said: bytes) -> bytes:
    """Return the proof that ``who`` (b"caller" or b"listener") knows the token, for the bytes ``said``."""
    return hmac.digest(token, who + b"\n" + said, "sha256")


def _decoded(heard: bytes) -> Hello:
    return dict(json.loads(heard[LENGTH.size :]))
