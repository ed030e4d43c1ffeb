"""Parse hostfiles: lists of hosts with their slots (the number of ranks on a host).

text of a hostfile -> in_file -> (Host, Host, ...)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# A name or an IPv4 address. It begins with no dash, since programs would take it for an option.
LABEL = r"[A-Za-z0-9_-]{1,63}"
NAME = re.compile(rf"(?=[A-Za-z0-9]){LABEL}(\.{LABEL})*(?<=[A-Za-z0-9])")


@dataclass(frozen=True)
class Host:
    """A machine of a run, and the number of ranks on it."""

    name: str
    slots: int | None = None  # ranks on it; None if the list does not say how many


def make_host(name: str, slots: str | None, where: str) -> Host:
    """Return a host; raise ValueError, which names ``where``, if its name or slots are malformed."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{where}: {name!r} is no name of a host: letters, digits, dots and dashes, as in 'node-1.lan'"
        )
    if slots is None:
        return Host(name)
    if not (slots.isascii() and slots.isdigit() and int(slots)):
        raise ValueError(f"{where}: {name!r} has slots {slots!r}, which is no number of ranks above 0")
    return Host(name, int(slots))


def read_hostfile(path: str) -> str:
    """Return the text of a hostfile; raise ValueError if it is no text file, OSError if it cannot be read."""
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path} is no file, but a folder, a pipe or a device: a hostfile is a text")
    try:
        return Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no hostfile, which is a text in UTF-8: {error}") from None


def in_file(text: str, where: str) -> tuple[Host, ...]:
    """Return the hosts of a hostfile in the format of Open MPI or MPICH.

    The slots of several lines for the same host are added.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            found.append(_host_of_line(words, f"{where}, line {number}"))
    return merged(found, where)


def _host_of_line(words: list[str], where: str) -> Host:
    """Return the host of a line such as ``host``, ``host:2`` or ``host slots=2 max_slots=4``."""
    name, colon, slots = words[0].partition(":")
    said: str | None = slots if colon else None
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key.replace("-", "_") not in ("slots", "max_slots"):
            raise ValueError(f"{where}: {word!r} is not understood; write 'host', 'host:2' or 'host slots=2'")
        if key == "slots":
            said = value
    return make_host(name, said, where)


def merged(found: Sequence[Host], where: str) -> tuple[Host, ...]:
    """Return each host once with the sum of its slots; a repeat without slots counts as one."""
    repeats = Counter(host.name for host in found)
    slots = Counter[str]()
    for host in found:
        slots[host.name] += host.slots or 1
    unsaid = {host.name for host in found if host.slots is None and repeats[host.name] == 1}
    return some([Host(name, None if name in unsaid else slots[name]) for name in repeats], where)


def some(found: Sequence[Host], where: str) -> tuple[Host, ...]:
    """Return the hosts as a tuple; raise ValueError if there is none."""
    if not found:
        raise ValueError(f"{where} names no host; write one, as in hosts='h1,h2'")
    return tuple(found)
