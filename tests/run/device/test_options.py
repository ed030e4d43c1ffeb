"""Options for GPUs, which are checked before anybody is asked for GPUs, and refused on cores."""

import pytest

from synk.run.device import CpuDevices
from synk.run.launch.fork_arguments import checked_devices

DEVICES = [None, "cpu"]


@pytest.fixture(autouse=True)
def no_cupy(monkeypatch):
    monkeypatch.setattr("synk.run.device.choose.find_cupy", lambda: False)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"device": "gpu"}, ValueError, "device='gpu' is unknown; choose one of cpu, cuda"),
        ({"memory_limit": 0}, ValueError, "memory_limit=0 is not a fraction"),
        ({"memory_limit": 1.5}, ValueError, "memory_limit=1.5"),
        ({"memory_limit": "1 GB"}, TypeError, "memory_limit='1 GB'"),
        ({"memory_limit": True}, TypeError, "memory_limit=True"),
        ({"precision": "bf16"}, ValueError, "precision='bf16' is unknown; choose one of float32, tf32"),
        ({"cuda_graphs": 1}, TypeError, "cuda_graphs=1 is neither True nor False"),
    ],
)
def test_a_wrong_option_is_refused_wherever_the_run_computes(arguments, error, said):
    for device in (*DEVICES, "cuda"):
        with pytest.raises(error, match=said):
            checked_devices(None, **{"device": device, "threads": None, **arguments})


@pytest.mark.parametrize("device", DEVICES)
def test_cores_compute_in_float32(device):
    with pytest.raises(ValueError, match="precision='float16' is for GPUs, and this run computes on cores"):
        checked_devices(2, device, 1, precision="float16")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("option", [{"cuda_graphs": True}, {"memory_limit": 0.5}, {"precision": "tf32"}])
def test_an_option_of_gpus_is_refused_on_cores(device, option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name}={value!r} is for GPUs, and this run computes on cores"):
        checked_devices(2, device, 1, **option)


def test_what_cores_do_anyway_may_be_said():
    said = {"cuda_graphs": False, "precision": "float32", "memory_limit": None}
    assert checked_devices(2, None, 1, **said) == CpuDevices(2, 1, asks_threads=True)


@pytest.mark.parametrize("device", [*DEVICES, "cuda"])
def test_bfloat16_needs_a_package(device, monkeypatch):
    monkeypatch.setattr("synk.compile.programs.text.transfer.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        checked_devices(1, device, 1, precision="bfloat16")
