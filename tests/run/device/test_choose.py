"""The devices that ranks compute on, decided from what a survey and the presence of CuPy say."""

import warnings

import numpy as np
import pytest

import synk
from synk.gpu.device import cupy_library
from synk.gpu.device.probe import Gpu, Survey
from synk.run.device import CpuDevice, CudaDevice, choose_devices
from synk.run.launch.fork_arguments import checked_devices, checked_ranks, with_environment
from synk.transport.machines.topology import Cpu, Topology

H200 = (Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200"))
MODULE = "synk.run.device.choose"


@pytest.fixture
def machine(monkeypatch):
    """Set what the driver says, and how CuPy is: "installed", "missing", or what importing it says."""

    def machine(found, cupy="installed"):
        def imported(version=0):
            if cupy != "installed":
                raise synk.CudaUnavailable(cupy)

        asked = []
        monkeypatch.setattr(f"{MODULE}.survey", lambda: asked.append(1) or found)
        monkeypatch.setattr(f"{MODULE}.find_cupy", lambda: cupy != "missing")
        monkeypatch.setattr(f"{MODULE}.import_cupy", imported)
        monkeypatch.setattr(f"{MODULE}.count_cores", lambda: 8)
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
        devices = choose_devices("cuda", 5, None, memory_limit=0.6)
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
        assert choose_devices(None, None, None).gpus == ()


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
    ("arguments", "error", "said"),
    [
        ({"device": "gpu"}, ValueError, "device='gpu' is unknown; choose one of cpu, cuda"),
        ({"memory_limit": 0}, ValueError, "memory_limit=0 is not a fraction"),
        ({"memory_limit": 1.5}, ValueError, "memory_limit=1.5"),
        ({"memory_limit": "1 GB"}, TypeError, "memory_limit='1 GB'"),
        ({"memory_limit": True}, TypeError, "memory_limit=True"),
        ({"precision": "bf16"}, ValueError, "precision='bf16' is unknown; choose one of float32, tf32"),
    ],
)
def test_arguments_are_checked_before_anybody_is_asked(machine, arguments, error, said):
    asked = machine(Survey(H200))
    with pytest.raises(error, match=said):
        checked_devices(None, **{"device": None, "threads": None, **arguments})
    assert asked == []


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_what_the_script_wants_reaches_the_devices(machine, precision):
    machine(Survey(H200))
    device = checked_devices(2, "cuda", 1, memory_limit=0.5, precision=precision).make(1)
    assert (device.memory, device.precision) == (0.5, precision)


@pytest.mark.parametrize(("device", "found"), [("cpu", Survey(H200)), (None, Survey())])
def test_cores_compute_in_float32(machine, device, found):
    machine(found)
    with pytest.raises(ValueError, match="precision='float16' is for GPUs, and this run computes on cores"):
        checked_devices(2, device, 1, precision="float16")


@pytest.mark.parametrize(("device", "found"), [("cpu", Survey(H200)), (None, Survey())])
@pytest.mark.parametrize("option", [{"cuda_graphs": True}, {"memory_limit": 0.5}, {"precision": "tf32"}])
def test_an_option_of_gpus_is_refused_on_cores(machine, device, found, option):
    machine(found)
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name}={value!r} is for GPUs, and this run computes on cores"):
        checked_devices(2, device, 1, **option)


@pytest.mark.parametrize("number", [np.int64(2), np.uint8(2), np.array(2)])
def test_numbers_of_ranks_and_threads_may_be_numpys(machine, number, monkeypatch):
    machine(Survey())
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    devices = checked_devices(number, "cpu", number)
    found = (
        devices.n_ranks,
        devices.threads,
        checked_ranks(number, 3, devices),
        *with_environment(number, None, None),
    )
    assert found == (2, 2, 2, 2, None, None)
    assert {type(one) for one in found[:4]} == {int}
    with pytest.raises(TypeError, match="n_parallel=.*True.* is not an integer"):
        checked_devices(np.bool_(True), "cpu", 1)


def test_more_threads_than_cpus_are_told(machine, monkeypatch):
    machine(Survey())
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 5})
    assert checked_devices(9, "cpu", 4).threads == 4
    with pytest.warns(synk.SynkWarning, match="threads=5 of each rank .* this process may use CPUs 0-2,5"):
        assert checked_devices(1, "cpu", 5).threads == 5


def test_ranks_that_share_the_cores_they_are_bound_to_are_told(machine, monkeypatch):
    machine(Survey())
    cpus = tuple(Cpu(number, number // 2, 0, 0) for number in range(8))  # two threads of each of four cores
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("synk.run.launch.fork_arguments.read_topology", lambda allowed: Topology(cpus))
    assert checked_devices(2, "cpu", None, bind="core").bind == "core"
    with pytest.warns(synk.SynkWarning, match="bind='core' of 3 ranks .* share 2 cores, .* CPUs 0-3: pass"):
        checked_devices(3, "cpu", None, bind="core")
    assert checked_devices(3, "cpu", None, bind="numa").bind == "numa"


def test_what_cores_do_anyway_may_be_said(machine):
    machine(Survey())
    said = {"cuda_graphs": False, "precision": "float32", "memory_limit": None}
    assert checked_devices(2, None, 1, **said).gpus == ()


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
