"""Hosts in every form that a user or a batch system gives them; and scripts that MPI has started."""

import os
from pathlib import Path

import pytest
from hypothesis import strategies as some

from support.slow import examples
from synk.transport.machines.hostfile import Host
from synk.transport.machines.hosts import check_known, parse_hosts, refuse_under_mpi, under_mpi
from synk.transport.machines.schedulers import MPIJOB_HOSTFILE, slurm_names, slurm_tasks
from synk.values.errors import SynkStateError


def files(**texts):
    """Return what reads files that are made up, by the last part of their names."""

    def read(path):
        if Path(path).name not in texts:
            raise FileNotFoundError(path)
        return texts[Path(path).name]

    return read


def auto(environ, **texts):
    return parse_hosts("auto", None, environ, files(**texts))


# --- lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("h1,h2", [Host("h1"), Host("h2")]),
        (" h1 , h2:4", [Host("h1"), Host("h2", 4)]),
        (["b.lan", "a-1:2"], [Host("b.lan"), Host("a-1", 2)]),
        (("10.77.0.1",), [Host("10.77.0.1")]),
    ],
)
def test_hosts_keep_the_order_of_a_list(hosts, found):
    assert parse_hosts(hosts, environ={}) == tuple(found)


names = some.from_regex(r"[a-z0-9]([a-z0-9-]{0,3}[a-z0-9])?(\.[a-z0-9-]{0,2}[a-z0-9]){0,2}", fullmatch=True)
lists = some.lists(
    some.builds(Host, names, some.none() | some.integers(1, 999)), min_size=1, unique_by=lambda h: h.name
).filter(lambda hosts: hosts[0].name != "auto" or len(hosts) > 1)


def written(host, between=":"):
    return host.name if host.slots is None else f"{host.name}{between}{host.slots}"


@examples(10, 30, lists)
def test_a_list_is_read_as_it_was_written(hosts):
    assert parse_hosts(",".join(map(written, hosts)), environ={}) == tuple(hosts)
    assert parse_hosts([written(host) for host in hosts], environ={}) == tuple(hosts)


def test_ranks_on_each_machine_are_those_that_the_script_asks_for():
    assert parse_hosts("h1,h2:3", 3, {}) == (Host("h1", 3), Host("h2", 3))
    assert parse_hosts("./hosts", 3, {}, files(hosts="h1 slots=1")) == (Host("h1", 3),)
    with pytest.raises(ValueError, match="'h2:4' contradicts n_parallel=3"):
        parse_hosts("h1,h2:4", 3, {})


@pytest.mark.parametrize(
    ("hosts", "complaint"),
    [
        ("", "'' is no name of a host"),
        ([], r"hosts=\[\] names no host"),
        ("h1,,h2", "'' is no name of a host"),
        ("h1,H1", "'h1' is named twice; for several ranks write 'h1:2'"),
        ("h1:0", "'h1' has slots '0', which is no number of ranks above 0"),
        ("h1:", "'h1' has slots ''"),
        ("h1:-2", "'h1' has slots '-2'"),
        ("h1:²", "'h1' has slots '²'"),
        ("h1 h2", "'h1 h2' is no name"),
        ("h1;reboot", "'h1;reboot' is no name"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no name"),  # ssh would take it for an option
        ("fe80::1", "'fe80' has slots ':1'"),
        ("h1:2:3", "'h1' has slots '2:3'"),
        ("h1,a..b", "'a..b' is no name"),
        (["h1", "a" * 64], "'aaa.*' is no name"),
    ],
)
def test_a_list_that_names_no_machines_says_so(hosts, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_hosts(hosts, environ={})


def test_what_is_no_string_is_no_host():
    with pytest.raises(TypeError, match="17 is no name of a host"):
        parse_hosts(["h1", 17], environ={})


@pytest.mark.parametrize("hosts", [5, True, b"h1", {"h1", "h2"}, {"h1": 2}])
def test_what_has_no_order_is_no_list_of_hosts(hosts):
    with pytest.raises(TypeError, match="is neither a string, a list of strings, nor a path"):
        parse_hosts(hosts, environ={})


# --- hostfiles -------------------------------------------------------------------------------------

HOSTFILE = """
# the first rack
h1 slots=2   # Open MPI's
h2:4
h3
h1 slots=1 max_slots=8

"""


def test_lines_of_a_host_in_a_hostfile_add_up():
    found = (Host("h1", 3), Host("h2", 4), Host("h3"))
    assert parse_hosts("some/hosts", environ={}, read=files(hosts=HOSTFILE)) == found
    assert parse_hosts(Path("hosts"), environ={}, read=files(hosts=HOSTFILE)) == found


def test_a_host_on_two_lines_has_two_slots():
    assert parse_hosts("./hosts", environ={}, read=files(hosts="h1\nh2\nh1\n")) == (Host("h1", 2), Host("h2"))


@examples(10, 30, lists, some.sampled_from([":", " slots="]))
def test_a_hostfile_is_read_as_it_was_written(hosts, between):
    text = "".join(f"{written(host, between)}\n" for host in hosts)
    assert parse_hosts("./hosts", environ={}, read=files(hosts=text)) == tuple(hosts)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# none\n\n", "./hosts names no host"),
        ("h1\nh2 slot=2\n", "./hosts, line 2: 'slot=2' is not understood"),
        ("h1 2\n", "line 1: '2' is not understood"),
        ("h1 slots=two\n", "'h1' has slots 'two'"),
        ("user@h1\n", "'user@h1' is no name of a host"),
    ],
)
def test_a_hostfile_names_the_line_that_is_wrong(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_hosts("./hosts", environ={}, read=files(hosts=text))


@pytest.mark.parametrize("text", [b"h1 # caf\xe9\n", bytes(range(256))])
def test_a_file_of_another_kind_is_no_hostfile(tmp_path, text):
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(ValueError, match="file is no hostfile, which is a text in UTF-8"):
        parse_hosts(tmp_path / "file", environ={})


def test_a_pipe_is_no_hostfile_and_a_folder_is_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # to read it would wait for good
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="is no file, but a folder, a pipe or a device"):
            parse_hosts(path, environ={})


def test_a_hostfile_may_come_from_windows(tmp_path):
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfh1\r\nh2:2\r\n")
    assert parse_hosts(tmp_path / "hosts", environ={}) == (Host("h1"), Host("h2", 2))


def test_a_hostfile_is_read_from_the_disk(tmp_path):
    (tmp_path / "hosts").write_text("h1\nh2\n")
    assert parse_hosts(str(tmp_path / "hosts")) == (Host("h1"), Host("h2"))
    with pytest.raises(FileNotFoundError, match="missing"):
        parse_hosts(tmp_path / "missing")


# --- batch systems ---------------------------------------------------------------------------------


def test_slurm_writes_ranges_of_names():
    listed = "node[01-03,7]-ib,login,rack[1-2]n[09-10]"
    assert list(slurm_names(listed)) == [
        *("node01-ib", "node02-ib", "node03-ib", "node7-ib", "login"),
        *("rack1n09", "rack1n10", "rack2n09", "rack2n10"),
    ]


def test_slurm_writes_how_often_tasks_repeat():
    assert list(slurm_tasks("2(x3),1")) == ["2", "2", "2", "1"]


@examples(20, 100, some.integers(0, 150), some.integers(1, 20), some.integers(1, 4))
def test_numbers_of_a_range_keep_their_width(first, count, width):
    names = [f"n{number:0{width}}" for number in range(first, first + count)]
    assert list(slurm_names(f"n[{names[0][1:]}-{names[-1][1:]}]")) == names


@examples(20, 100, some.lists(some.tuples(some.integers(1, 99), some.integers(1, 5)), min_size=1))
def test_tasks_are_as_many_as_written(repeats):
    text = ",".join(f"{tasks}(x{count})" if count > 1 else f"{tasks}" for tasks, count in repeats)
    assert list(slurm_tasks(text)) == [str(tasks) for tasks, count in repeats for _ in range(count)]


def test_a_slurm_allocation_has_nodes_and_tasks():
    granted = {"SLURM_JOB_NODELIST": "n[1-2],login", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert auto(granted) == (Host("n1", 2), Host("n2", 2), Host("login", 1))
    assert auto({"SLURM_JOB_NODELIST": "n[1-2]"}) == (Host("n1"), Host("n2"))


@pytest.mark.parametrize(
    ("nodes", "tasks", "complaint"),
    [
        ("n[1-2", "1", r"SLURM_JOB_NODELIST='n\[1-2' is no list of nodes"),
        ("n1,", "1", "is no list of nodes"),
        ("", "1", "SLURM_JOB_NODELIST='' names 0"),
        ("n[3-1]", "1", "'3-1' is no number"),
        ("n[1-x]", "1", "'1-x' is no number"),
        ("n[1-3]", "2(x2)", "is for 2 nodes, and SLURM_JOB_NODELIST=.* names 3"),
        ("n1", "2(x", r"SLURM_TASKS_PER_NODE='2\(x': '2\(x' is not understood"),
        ("n1", "0", "'n1' has slots '0'"),
    ],
)
def test_a_list_of_slurm_that_is_broken_says_so(nodes, tasks, complaint):
    with pytest.raises(ValueError, match=complaint):
        auto({"SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": tasks})


def test_an_mpijob_has_a_hostfile():
    assert MPIJOB_HOSTFILE == "/etc/mpi/hostfile"
    text = "train-worker-0.train.default.svc slots=1\ntrain-worker-1.train.default.svc slots=1\n"
    found = Host("train-worker-0.train.default.svc", 1), Host("train-worker-1.train.default.svc", 1)
    assert auto({}, hostfile=text) == found


def test_lsf_and_pbs_repeat_a_host_for_each_slot():
    assert auto({"LSB_MCPU_HOSTS": "h1 2 h2 1", "LSB_HOSTS": "x"}) == (Host("h1", 2), Host("h2", 1))
    assert auto({"LSB_HOSTS": "h1 h1 h2"}) == (Host("h1", 2), Host("h2", 1))
    assert auto({"PBS_NODEFILE": "/spool/7"}, **{"7": "h2\nh1\nh2\n"}) == (Host("h2", 2), Host("h1", 1))
    with pytest.raises(ValueError, match="LSB_MCPU_HOSTS='h1 2 h2' is no list of pairs"):
        auto({"LSB_MCPU_HOSTS": "h1 2 h2"})


def test_auto_without_a_list_names_all_places_where_it_looked():
    with pytest.raises(ValueError, match=r"SLURM_JOB_NODELIST.*PBS_NODEFILE is set.*/etc/mpi/hostfile"):
        auto({})


# --- names, and MPI --------------------------------------------------------------------------------


def test_hosts_that_nobody_knows_are_named():
    def find(name):
        if name != "h1":
            raise OSError(-2, "Name or service not known")
        return "10.0.0.1"

    check_known([Host("h1")], find)
    with pytest.raises(ValueError, match=r"'h2' \(Name or service not known\), 'h3'.*`getent hosts 'h2'`"):
        check_known([Host("h1"), Host("h2"), Host("h3")], find)


def test_one_machine_under_two_names_is_no_two_hosts():
    with pytest.raises(ValueError, match="hosts 'h1' and 'h1.lan' are one machine: 10.0.0.1"):
        check_known([Host("h1"), Host("h1.lan")], lambda name: "10.0.0.1")


@pytest.mark.parametrize("sign", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"])
def test_a_script_that_mpi_has_started_names_no_hosts(sign):
    assert under_mpi({sign: "2", "SLURM_NTASKS": "4"}) == f"{sign}=2"
    with pytest.raises(SynkStateError, match=f"hosts='h1,h2', but mpirun or srun .*{sign}=2"):
        refuse_under_mpi("h1,h2", {sign: "2"})


def test_an_allocation_alone_has_started_nothing():
    assert under_mpi({"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) is None
    refuse_under_mpi("auto", {"SLURM_NTASKS": "4"})
