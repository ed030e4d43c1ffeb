"""Deaths are told by rank, once their descriptors are readable."""

import os
import select

from synk.transport.commands.deaths import Deaths


def test_a_death_wakes_the_sleeper_and_is_told_by_rank():
    told, poll = [], select.poll()
    (alive, alive_end), (dead, dead_end) = os.pipe(), os.pipe()
    deaths = Deaths({alive: 1, dead: 2}, told.append)
    deaths.register(poll)
    os.close(dead_end)
    deaths.report([descriptor for descriptor, _ in poll.poll(10_000)])
    assert told == [2]
    deaths.report([alive_end])  # not one of theirs
    assert told == [2]
    for descriptor in (alive, alive_end, dead):
        os.close(descriptor)
