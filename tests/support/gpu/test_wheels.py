"""The wheels that are carried to a GPU's machine: what is needed there, less what it has."""

import re

import pytest

from support.gpu import wheels as gpu_wheels


def test_what_is_needed_is_what_synk_requires_the_front_end_and_pytest():
    needed = gpu_wheels.needed((gpu_wheels.ROOT / "setup.cfg").read_text())
    names = [re.match("[a-z_-]+", requirement)[0] for requirement in needed]
    of_synk = ["numpy", "pytensor", "posix_ipc", "threadpoolctl"]
    assert names == [*of_synk, "nvidia-cudnn-frontend", "pytest", "hypothesis"]


def test_a_machine_is_told_by_all_tags_that_its_wheels_may_have():
    told = gpu_wheels.tags("3.13", "aarch64")
    assert "--python-version=3.13" in told
    for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        assert f"--platform={tag}_aarch64" in told


def test_what_the_machine_has_is_not_carried_and_other_versions_go(tmp_path):
    everything, folder = tmp_path / "everything", tmp_path / "wheels"
    for place, name in [
        (everything, "posix_ipc-1.3.2-cp312-cp312-manylinux1_x86_64.whl"),
        (everything, "numpy-2.5.2-cp312-cp312-manylinux_2_28_x86_64.whl"),
        (folder, "posix_ipc-1.3.0-cp312-cp312-manylinux1_x86_64.whl"),
        (folder, "mine-1.0-py3-none-any.whl"),
    ]:
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(bytes(20_000))
    gpu_wheels.carry(everything, folder, {"numpy"})
    assert sorted(wheel.name.split("-cp")[0] for wheel in folder.iterdir()) == [
        "mine-1.0-py3-none-any.whl",
        "posix_ipc-1.3.2",
    ]
    assert gpu_wheels.listing(folder).splitlines()[-1].split() == ["0.04", "MB", "in", str(folder)]


def test_pip_that_fails_ends_it(monkeypatch):
    monkeypatch.setattr(gpu_wheels.sys, "executable", "false")
    with pytest.raises(SystemExit, match="pip failed: download"):
        gpu_wheels.pip("download")
