"""The GPUs that ranks compute on, decided from what a survey and the presence of CuPy say."""

import warnings

import pytest

import synk
from synk.gpu.device import cupy_library
from synk.gpu.device.cuda_device import CudaDevice
from synk.gpu.device.probe import Gpu, Survey
from synk.gpu.setup import choose_gpus
from synk.gpu.speedups.linker import RecordingDevice
from synk.run.device import CpuDevice, CpuDevices, GpuOptions, choose, choose_devices
from synk.run.launch.fork_arguments import checked_devices

H200 = (Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200"))


@pytest.fixture
def machine(monkeypatch):
    """Set what the driver says, and how CuPy is: "installed", "missing", or what importing it says."""

    def machine(found, cupy="installed"):
        def imported(version=0):
            if cupy != "installed":
                raise synk.CudaUnavailable(cupy)

        asked = []
        monkeypatch.setattr(choose_gpus, "survey", lambda: asked.append(1) or found)
        monkeypatch.setattr(choose_gpus, "import_cupy", imported)
        for module in (choose, choose_gpus):
            monkeypatch.setattr(module, "find_cupy", lambda: cupy != "missing")
            monkeypatch.setattr(module, "count_cores", lambda: 8)
        return asked

    return machine


def kinds(devices):
    return [type(devices.make(rank)) for rank in range(devices.n_ranks)]


@pytest.mark.parametrize("device", [None, "cuda"])
def test_one_rank_per_gpu(machine, device):
    machine(Survey(H200))
    devices = choose_devices(device, None, None)
    assert (devices.n_ranks, devices.threads) == (2, 4)
    assert kinds(devices) == [CudaDevice] * 2
    assert [devices.make(rank).gpu.number for rank in range(2)] == [0, 1]
    assert [devices.make(rank).memory for rank in range(2)] == [0.9, 0.9]


def test_fewer_ranks_leave_gpus_alone(machine):
    machine(Survey(H200))
    assert choose_devices("cuda", 1, 3).gpus == H200[:1]


def test_more_ranks_share_in_turn_and_a_warning_names_them(machine):
    machine(Survey(H200))
    with pytest.warns(synk.SynkWarning) as caught:
        devices = choose_devices("cuda", 5, None, GpuOptions(memory_limit=0.6))
    message = str(caught[0].message)
    assert message.startswith(
        "fork: ranks 0, 2, 4 share GPU 0 (NVIDIA H200); ranks 1, 3 share GPU 1 (NVIDIA H200). They "
    )
    assert caught[0].filename == __file__
    made = [devices.make(rank) for rank in range(5)]
    assert [device.gpu.number for device in made] == [0, 1, 0, 1, 0]
    assert [device.memory for device in made] == pytest.approx([0.2, 0.3, 0.2, 0.3, 0.2])


def test_a_rank_that_has_a_gpu_alone_gives_no_warning(machine):
    machine(Survey(H200))
    with pytest.warns(synk.SynkWarning, match=r"ranks 0, 2 share GPU 0 \(NVIDIA H200\)\. They"):
        choose_devices("cuda", 3, None)


def test_runs_on_cores_make_no_survey(machine):
    asked = machine(Survey(H200))
    devices = choose_devices("cpu", None, None)
    assert (devices.n_ranks, devices.threads, asked) == (8, 1, [])
    assert kinds(devices) == [CpuDevice] * 8


def test_without_cupy_the_driver_is_not_asked(machine):
    asked = machine(Survey(H200), cupy="missing")
    assert kinds(choose_devices(None, 2, None)) == [CpuDevice] * 2
    assert asked == []


@pytest.mark.parametrize("found", [Survey(reason="no driver"), Survey(reason="error 100", version=13000)])
def test_no_gpu_means_cores_without_a_word(machine, found):
    machine(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_devices(None, None, None) == CpuDevices(8, 1)


@pytest.mark.parametrize(
    ("found", "cupy", "said"),
    [
        (
            Survey(reason="it did not answer", is_trouble=True),
            "installed",
            "on cores: it did not",
        ),
        (Survey(H200), "libcublas is gone", r"there is GPU 0 \(NVIDIA H200\), but libcublas is gone"),
    ],
)
def test_trouble_means_cores_with_a_warning(machine, found, cupy, said):
    machine(found, cupy)
    with pytest.warns(synk.SynkWarning, match=said):
        assert kinds(choose_devices(None, 1, None)) == [CpuDevice]


@pytest.mark.parametrize(
    ("found", "cupy", "said"),
    [
        (
            Survey(reason="there is no driver"),
            "installed",
            "device='cuda': there is no driver. `python",
        ),
        (
            Survey(reason="there is no driver"),
            "missing",
            r"there is no driver; CuPy is not installed either: "
            r"pip install 'synk-pytensor\[cuda13\]' \(for drivers",
        ),
        (
            Survey(reason="hidden", version=12040),
            "missing",
            r"hidden; CuPy is not installed either: pip install 'synk-pytensor\[cuda12\]'",
        ),
        (Survey(H200), "libcublas is gone", "libcublas is gone"),
    ],
)
def test_gpus_that_are_asked_for_are_missed(machine, found, cupy, said):
    machine(found, cupy)
    with pytest.raises(synk.CudaUnavailable, match=said):
        choose_devices("cuda", None, None)


@pytest.mark.parametrize(
    "arguments", [{"device": "gpu"}, {"memory_limit": 0}, {"precision": "bf16"}, {"cuda_graphs": 1}]
)
def test_arguments_are_checked_before_anybody_is_asked(machine, arguments):
    asked = machine(Survey(H200))
    with pytest.raises((TypeError, ValueError)):
        checked_devices(None, **{"device": None, "threads": None, **arguments})
    assert asked == []


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_what_the_script_wants_reaches_the_devices(machine, precision):
    machine(Survey(H200))
    device = checked_devices(2, "cuda", 1, memory_limit=0.5, precision=precision).make(1)
    assert (type(device), device.memory, device.precision) == (CudaDevice, 0.5, precision)


def test_launches_are_recorded_by_another_device(machine):
    machine(Survey(H200))
    assert type(checked_devices(2, "cuda", 1, cuda_graphs=True).make(0)) is RecordingDevice


@pytest.mark.parametrize(("device", "found"), [("cpu", Survey(H200)), (None, Survey())])
@pytest.mark.parametrize("option", [{"cuda_graphs": True}, {"memory_limit": 0.5}, {"precision": "float16"}])
def test_an_option_of_gpus_is_refused_where_there_is_none(machine, device, found, option):
    machine(found)
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name}={value!r} is for GPUs, and this run computes on cores"):
        checked_devices(2, device, 1, **option)


def test_bfloat16_needs_a_package(machine, monkeypatch):
    asked = machine(Survey(H200))
    monkeypatch.setattr("synk.compile.programs.text.transfer.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        checked_devices(1, "cuda", 1, precision="bfloat16")
    assert asked == []


def test_only_rank_0_tells_of_ops_on_the_host(machine):
    machine(Survey(H200))
    devices = choose_devices("cuda", 2, None)
    assert [devices.make(rank)._host_ops for rank in range(2)] == ["warn", "allow"]


# --- CuPy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            ModuleNotFoundError("no cupy", name="cupy"),
            r"which is not installed: pip install 'synk-pytensor\[",
        ),
        (ModuleNotFoundError("no cuda", name="cuda"), "CuPy cannot be imported: no cuda; pip install"),
        (ImportError("libnvrtc.so: not found"), "ImportError: libnvrtc.so: not found; pip install"),
    ],
)
def test_why_cupy_is_not_there(monkeypatch, raised, said):
    def refuse(name):
        raise raised

    monkeypatch.setattr(cupy_library, "import_module", refuse)
    with pytest.raises(synk.CudaUnavailable, match=said):
        cupy_library.import_cupy()


def test_the_extra_suits_the_driver():
    assert cupy_library.remedy(12090) == "pip install 'synk-pytensor[cuda12]'"
    assert cupy_library.remedy(13010) == "pip install 'synk-pytensor[cuda13]'"
