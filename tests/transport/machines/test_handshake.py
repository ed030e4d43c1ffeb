"""Leaders that call the master on loopback, among strangers who say anything, or nothing."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from synk.transport.machines import handshake, proof
from synk.transport.machines.handshake import Listener, connect
from synk.transport.machines.proof import HandshakeRefused, new_token
from synk.transport.machines.versions import VersionsDiffer

TOKEN = new_token()


def soon(seconds=20.0):
    return time.monotonic() + seconds


@pytest.fixture
def listener():
    with contextlib.closing(Listener("127.0.0.1")) as made:
        yield made


@pytest.fixture
def elsewhere():
    """Call something in a thread; its result is waited for."""
    with ThreadPoolExecutor(2, "elsewhere") as threads:
        yield threads.submit


def meet(listener, elsewhere, hello=None):
    """Return both ends of a connection that is proven, with what each heard."""
    called = elsewhere(connect, listener.address, TOKEN, hello or {"rank": 1}, soon())
    end, heard = listener.accept(TOKEN, {"rank": 0}, soon())
    other, told = called.result()
    return end, heard, other, told


def test_a_leader_and_the_master_meet(listener, elsewhere):
    end, heard, other, told = meet(listener, elsewhere, {"rank": 1, "host": "h2"})
    with end, other:
        assert (heard["rank"], heard["host"]) == (1, "h2")
        assert (told["rank"], told["host"]) == (0, socket.gethostname())
        assert sorted(heard["versions"]) == ["numpy", "pytensor", "python", "synk"]
        for one in (end, other):
            assert one.gettimeout() is None
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


def test_only_the_address_that_was_asked_for_is_open(listener):
    assert listener.address[0] == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", listener.address[1]), timeout=5)


@pytest.mark.parametrize("address", ["", "0.0.0.0", "0", "::"])
def test_all_networks_are_no_address(address):
    with pytest.raises(ValueError, match="means all networks"):
        Listener(address)


def test_an_address_of_another_machine_is_named():
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        Listener("192.0.2.1")


def test_no_byte_after_the_handshake_is_lost(listener, elsewhere):
    def call():
        end, _ = connect(listener.address, TOKEN, {}, soon())
        end.sendall(b"the first frame")
        return end

    called = elsewhere(call)
    end, _ = listener.accept(TOKEN, {}, soon())
    with end, called.result():
        assert end.recv(100) == b"the first frame"


def test_several_callers_are_taken_one_by_one(listener, elsewhere):
    calls = [elsewhere(connect, listener.address, TOKEN, {"rank": rank}, soon()) for rank in (1, 2)]
    with contextlib.ExitStack() as ends:
        heard = set()
        for _ in calls:
            end, hello = listener.accept(TOKEN, {}, soon())
            ends.enter_context(end)
            heard.add(hello["rank"])
        for call in calls:
            ends.enter_context(call.result()[0])
    assert heard == {1, 2}


# --- strangers -------------------------------------------------------------------------------------

NOISES = {
    "silent": b"",
    "a browser": b"GET / HTTP/1.1\r\nHost: h1\r\n\r\n",
    "half a greeting": proof.GREETING[:5],
    "no proof": proof.GREETING + bytes(32) + proof.LENGTH.pack(100) + bytes(132),
    "a hello without end": proof.GREETING + bytes(32) + proof.LENGTH.pack(4096),
    "a huge hello": proof.GREETING + bytes(32) + b"\xff\xff" + bytes(1000),
}


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_strangers_keep_nobody_out(listener, elsewhere, monkeypatch, noise):
    monkeypatch.setattr(handshake, "CALLERS", 8)

    def call_after_strangers():
        for _ in range(20):  # more than may wait at a time, all still connected
            stranger = strangers.enter_context(socket.create_connection(listener.address, timeout=20))
            stranger.sendall(noise)
        return connect(listener.address, TOKEN, {"rank": 1}, soon())

    with contextlib.ExitStack() as strangers:
        called = elsewhere(call_after_strangers)
        end, heard = listener.accept(TOKEN, {}, soon())
        with end, called.result()[0]:
            assert heard["rank"] == 1
            assert len(listener._callers) <= 8


def test_a_caller_that_takes_long_is_hung_up_on(listener, monkeypatch):
    monkeypatch.setattr(handshake, "CALLER_SECONDS", 0.02)
    with socket.create_connection(listener.address) as slow:
        slow.sendall(proof.GREETING[:1])
        with pytest.raises(TimeoutError, match=r"nobody of this run called .*127\.0\.0\.1: it took longer"):
            listener.accept(TOKEN, {}, soon(0.3))
        assert slow.recv(1) == b""


def test_a_byte_now_and_then_buys_no_time(listener, monkeypatch):
    monkeypatch.setattr(handshake, "CALLER_SECONDS", 0.2)
    stop = threading.Event()

    def drip(end):
        with contextlib.suppress(OSError):
            for byte in proof.GREETING + bytes(4000):
                end.sendall(bytes([byte]))
                if stop.wait(0.01):
                    return

    with socket.create_connection(listener.address) as slow:
        dripping = threading.Thread(target=drip, args=(slow,))
        dripping.start()
        with pytest.raises(TimeoutError, match="it took longer"):
            listener.accept(TOKEN, {}, soon(0.6))
        stop.set()
        dripping.join()
        assert not listener._callers


def test_a_caller_of_another_run_is_refused_on_both_sides(listener, elsewhere):
    called = elsewhere(connect, listener.address, new_token(), {}, soon())
    with pytest.raises(TimeoutError, match="does not prove that it knows the token"):
        listener.accept(TOKEN, {}, soon(0.5))
    with pytest.raises(HandshakeRefused, match=r"127\.0\.0\.1 port \d+ is not believed: it hung up"):
        called.result()


@settings(max_examples=25)
@given(noise=some.binary(max_size=300), greets=some.booleans())
def test_any_noise_is_dropped_and_the_next_caller_gets_in(noise, greets):
    said = proof.GREETING + noise if greets else noise
    with contextlib.ExitStack() as made:
        listener = made.enter_context(contextlib.closing(Listener("127.0.0.1")))
        stranger = made.enter_context(socket.create_connection(listener.address))
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        threads = made.enter_context(ThreadPoolExecutor(1))
        end, heard, other, _ = meet(listener, threads.submit)
        with end, other:
            assert heard["rank"] == 1


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n" * 10, proof.GREETING + bytes(2000)])
def test_a_caller_believes_no_stranger_either(elsewhere, answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        called = elsewhere(connect, server.getsockname(), TOKEN, {}, soon())
        end, _ = server.accept()
        with end:
            end.sendall(answer)
            with pytest.raises(HandshakeRefused, match="is not believed"):
                called.result()


def test_a_listener_that_says_nothing_is_given_up():
    never = pytest.raises(TimeoutError, match=r"127\.0\.0\.1 port \d+ did not answer in time")
    with socket.create_server(("127.0.0.1", 0)) as silent, never:
        connect(silent.getsockname(), TOKEN, {}, soon(0.2))


def test_a_port_that_is_closed_is_named():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1 port {address[1]}"):
        connect(address, TOKEN, {}, soon())


def test_no_empty_token_is_taken(listener):
    for use in (lambda: listener.accept(b"", {}, soon()), lambda: connect(listener.address, b"", {}, soon())):
        with pytest.raises(ValueError, match="a token has 32 bytes"):
            use()


# --- versions --------------------------------------------------------------------------------------


def test_other_versions_are_named_on_both_sides_with_their_hosts(listener, elsewhere, monkeypatch):
    here = {"python": "3.11", "numpy": "2.1.0", "synk": "0.1.0"}

    def versions():
        other = threading.current_thread().name.startswith("elsewhere")
        return {**here, "python": "3.13", "numpy": "2.4.0"} if other else here

    monkeypatch.setattr(handshake, "versions", versions)
    called = elsewhere(connect, listener.address, TOKEN, {"host": "h2"}, soon())
    said = "host 'h2' has python 3.13, numpy 2.4.0, and host 'h1' has python 3.11, numpy 2.1.0"
    with pytest.raises(VersionsDiffer, match=said):
        listener.accept(TOKEN, {"host": "h1"}, soon())
    said = "host 'h1' has python 3.11, numpy 2.1.0, and host 'h2' has python 3.13, numpy 2.4.0"
    with pytest.raises(VersionsDiffer, match=said):
        called.result()
