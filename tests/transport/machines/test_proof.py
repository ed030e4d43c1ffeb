"""The dialogue by which both ends prove the token of a run, without sockets, and with every liar between."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from support.slow import examples
from synk.transport.machines import proof
from synk.transport.machines.proof import HandshakeRefused, call, check_token, encoded, listen, new_token

TOKEN, ANOTHER = new_token(), new_token()
MASTER, LEADER = {"host": "h1"}, {"host": "h2", "rank": 3}


class Party:
    """One side of a dialogue: takes bytes as they come, and keeps what it says."""

    def __init__(self, dialogue):
        self.said, self.hello = b"", None
        self._dialogue, self._got = dialogue, b""
        self._speak(next(dialogue))

    def _speak(self, said):
        while isinstance(said, bytes):
            self.said += said
            said = next(self._dialogue)
        self._wanted = said

    def take(self, received):
        self._got += received
        try:
            while self.hello is None and len(self._got) >= self._wanted:
                got, self._got = self._got[: self._wanted], self._got[self._wanted :]
                self._speak(self._dialogue.send(got))
        except StopIteration as ended:
            self.hello = ended.value


def caller(token=TOKEN):
    return Party(call(token, encoded(LEADER)))


def listener(token=TOKEN):
    return Party(listen(token, encoded(MASTER)))


def converse(one, other, alter=lambda number, said: said):
    """Carry what is said to the other side, message by message, until nobody says more."""
    parties, heard, number = (one, other), [0, 0], 0
    while any(heard[i] < len(parties[i].said) for i in (0, 1)):
        for i in (0, 1):
            said, heard[i] = parties[i].said[heard[i] :], len(parties[i].said)
            if said:
                parties[1 - i].take(alter(number, said))
                number += 1


def test_both_learn_what_the_other_says_of_itself():
    one, other = caller(), listener()
    converse(one, other)
    assert (one.hello, other.hello) == (MASTER, LEADER)


@examples(25, 100, some.integers(0, 3), some.integers(0), some.integers(0, 7))
def test_a_bit_that_is_changed_on_the_way_is_noticed(which, byte, bit):
    def alter(number, said):
        changed = bytearray(said)
        if number == which:
            changed[byte % len(said)] ^= 1 << bit
        return bytes(changed)

    one, other = caller(), listener()
    with contextlib.suppress(HandshakeRefused):
        converse(one, other, alter)
    assert one.hello is None
    assert other.hello is None or which == 3  # the last word comes after the listener has heard all


def test_another_token_proves_nothing_and_is_told_nothing(monkeypatch):
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("what a stranger says was parsed"))
    one, other = caller(ANOTHER), listener()
    with pytest.raises(HandshakeRefused, match="does not prove that it knows the token"):
        converse(one, other)
    assert len(other.said) == len(proof.GREETING) + proof.NONCE_BYTES
    assert one.hello is other.hello is None


def test_a_listener_with_another_token_is_not_believed():
    # It does not check what the caller says.
    one, liar = caller(), Party(listen(ANOTHER, encoded(MASTER)))
    liar.take(one.said)
    one.take(liar.said + encoded(MASTER) + bytes(proof.PROOF_BYTES - 1))
    with pytest.raises(HandshakeRefused, match="does not prove"):
        one.take(b"\0")


def test_what_was_said_before_opens_no_other_connection():
    one, other = caller(), listener()
    converse(one, other)
    with pytest.raises(HandshakeRefused, match="does not prove"):
        listener().take(one.said)
    with pytest.raises(HandshakeRefused, match="does not prove"):
        caller().take(other.said)


def test_a_caller_that_hears_itself_is_not_fooled():
    echoed = caller()
    with pytest.raises(HandshakeRefused, match="does not prove"):
        converse(echoed, Echo(echoed))
    assert echoed.hello is None


class Echo:
    """Says what it is told."""

    def __init__(self, party):
        self.said = b""

    def take(self, received):
        self.said += received


def test_a_listeners_proof_is_none_of_a_caller():
    # An attacker has a listener answer the challenge of another one.
    victim, oracle = listener(), caller()
    victim.take(oracle.said[: len(proof.GREETING) + proof.NONCE_BYTES])
    other = listener()
    other.take(oracle.said)
    oracle.take(other.said)  # now it proves itself to `other`, and the attacker carries that to the victim
    with pytest.raises(HandshakeRefused, match="does not prove"):
        victim.take(oracle.said[len(proof.GREETING) + proof.NONCE_BYTES :])


greeted = some.builds(lambda nonce: proof.GREETING + nonce, some.binary(min_size=32, max_size=32))
framed = some.builds(lambda text: proof.LENGTH.pack(len(text)) + text, some.binary(min_size=1, max_size=200))
noise = some.lists(some.binary(max_size=100) | greeted | framed, max_size=8).map(b"".join)


@examples(25, 100, noise, some.sampled_from([caller, listener]))
def test_noise_is_never_believed(said, party):
    victim = party()
    with contextlib.suppress(HandshakeRefused):
        victim.take(said)
    assert victim.hello is None


@given(some.floats(0, 1, exclude_max=True))
def test_a_dialogue_that_is_cut_believes_nobody(part):
    one, other = caller(), listener()
    one.take(other.said)
    other.take(one.said)
    one.take(other.said)
    late = listener()
    late.take(one.said[: int(part * len(one.said))])
    assert late.hello is None


@pytest.mark.parametrize("size", [0, proof.HELLO_BYTES + 1, 65535])
def test_a_hello_of_any_other_length_is_refused_before_it_comes(size):
    victim = listener()
    with pytest.raises(HandshakeRefused, match=f"its hello would have {size} bytes"):
        victim.take(proof.GREETING + bytes(32) + proof.LENGTH.pack(size))


def test_tokens_and_hellos_have_their_lengths():
    with pytest.raises(ValueError, match="a token has 32 bytes, this one 0"):
        check_token(b"")
    with pytest.raises(ValueError, match="a hello of 5010 bytes, of at most 4096"):
        encoded({"a": "x" * 5001})
    assert new_token() != new_token()
