"""Jobs that a script starts: what is refused before anything is started."""

import pytest

from synk.machines.hostfile import Host
from synk.run.hosts import StartedJobs
from synk.values.errors import SynkStateError


def test_a_script_on_another_machine_than_the_first_is_told_where_to_start():
    hosts = [Host("192.0.2.1", 1), Host("192.0.2.2", 1)]
    with pytest.raises(SynkStateError, match=r"is '192\.0\.2\.1', .* start it on the first"):
        StartedJobs(hosts, 1).call()
