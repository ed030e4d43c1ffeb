import pytest

from synk.transport.memory.cgroups import find_cgroups


@pytest.mark.parametrize(
    ("path", "root", "names"),
    [
        ("/", "/", ["/"]),
        ("/a/b", "/", ["/a/b", "/a", "/"]),
        ("/docker/one", "/docker/one", ["/"]),  # the container's own is mounted, under the machine's name
        ("/docker/one/two", "/docker/one", ["/two", "/"]),
        ("/docker/one", "/docker/other", ["/"]),
        ("/../../outside", "/", ["/"]),  # outside of the namespace
        ("/a b/c.", "/", ["/a b/c.", "/a b", "/"]),
    ],
)
def test_where_the_cgroups_of_a_process_are(path, root, names):
    mount = f"35 31 0:32 {root} /sys/fs/my\\040groups rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
    found = list(find_cgroups(f"0::{path}\n", mount))
    assert [entry.name for entry in found] == names
    assert found[-1].folder == "/sys/fs/my groups"
    assert all(entry.folder == f"/sys/fs/my groups{entry.name}".rstrip("/") for entry in found)


def test_a_path_with_colons_is_one(tmp_path):
    [inner, _] = find_cgroups("0::/a:b\n", f"1 2 0:3 / {tmp_path} rw - cgroup2 cgroup2 rw,nsdelegate\n")
    assert inner.name == "/a:b"


@pytest.mark.parametrize(("controller", "path"), [("memory", "/one"), ("cpu", "/two"), ("pids", None)])
def test_version_1_has_a_tree_for_each_controller(controller, path):
    membership = "4:memory:/one\n1:cpu,cpuacct:/two\n"
    mounts = "1 2 0:3 / /sys/memory rw - cgroup cgroup rw,memory\n"
    mounts += "1 2 0:4 / /sys/cpu rw - cgroup cgroup rw,cpuacct,cpu\n"
    found = [entry.folder for entry in find_cgroups(membership, mounts, controller)]
    assert found == ([] if path is None else [f"/sys/{controller}{path}", f"/sys/{controller}"])
