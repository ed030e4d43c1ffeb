"""The address at which the first host listens."""

import socket

import pytest

from synk.transport.machines import networks
from synk.transport.machines.networks import addresses, own_address
from synk.values.errors import SynkStateError


@pytest.fixture(autouse=True)
def two_networks(monkeypatch):
    """Give this machine two networks, and names to some hosts."""
    known = {"h1": "10.0.0.1", "h2": "10.0.0.2", "loop": "127.0.1.1"}
    mine = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": "10.9.0.1"}
    monkeypatch.setattr(networks, "addresses", lambda: mine)
    monkeypatch.setattr(socket, "gethostbyname", known.__getitem__)


def test_this_machine_has_an_address():
    assert addresses()["lo"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("interface", "address"),
    [(None, "10.0.0.1"), ("ib0", "10.9.0.1"), ("10.9.0.0/16", "10.9.0.1"), ("10.9.7.7/16", "10.9.0.1")],
)
def test_the_interface_says_where_to_listen(interface, address):
    assert own_address("h1", ["h2"], interface) == address


@pytest.mark.parametrize("interface", ["eth1", "10.8.0.0/16", "10.0.0.0/99", "a/b", "fe80::/10"])
def test_an_interface_that_is_not_here_is_named_with_those_that_are(interface):
    with pytest.raises(SynkStateError, match=rf"{interface}.* eth0 \(10.0.0.1\), ib0"):
        own_address("h1", ["h2"], interface)


def test_an_interface_is_a_string():
    with pytest.raises(TypeError, match="interface=3 is no string"):
        own_address("h1", ["h2"], 3)


@pytest.mark.parametrize("interface", [None, "eth0"])
def test_the_first_host_is_this_machine(interface):
    with pytest.raises(SynkStateError, match=r"h2 \(10.0.0.2\) is not this machine .*: put .* first"):
        own_address("h2", ["h3"], interface)


def test_a_machine_is_known_by_its_own_name_where_others_know_another_address(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h2")
    assert own_address("h2", ["h3"], "eth0") == "10.0.0.1"


def test_a_name_for_this_machine_alone_is_no_address_for_others():
    assert own_address("loop", []) == "127.0.1.1"
    assert own_address("loop", ["127.0.0.1"]) == "127.0.0.1"  # from where that is reached
