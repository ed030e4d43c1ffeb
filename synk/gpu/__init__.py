"""GPUs: devices, communicators, ranks and kernels, which `register` enters where other suites look.

    array modules  what programs do in another way on CuPy's arrays    `CupyArrays`
    rewrites       elementwise Ops join into kernels in CUDA           `FUSION`
    providers      networks' kernels in CUDA, and cuDNN's              `GPU_PROVIDERS`
    connections    arrays go by NCCL, or through host memory           `connect_gpus`

Importing the package does so. Nothing below imports it but `synk.run.device.choose`, where `fork` is asked
for GPUs or looks for them; without ``fork``, ``import synk.gpu`` comes before ``ArrayLinker(cupy)``. Nothing
in it has run on a GPU yet: docs/gpu.rst.
"""

from functools import cache

from synk.compile.array_modules import ARRAY_MODULES
from synk.compile.programs.elementwise.fusion import KernelFusion, register_fusion
from synk.compile.programs.passes.host_or_device import wanted_on_host
from synk.gpu.dispatch.cupy_arrays import CupyArrays
from synk.gpu.elementwise.cuda_dialect import CUDA, FUSION
from synk.gpu.kernels.gpu_providers import GPU_PROVIDERS
from synk.gpu.rewriting.residual_block import register_residual_blocks
from synk.gpu.setup.gpu_connection import connect_gpus
from synk.gpu.setup.gpu_devices import GpuDevices
from synk.ops.kernels.choose import PROVIDERS
from synk.run.rank.connection import decide


@cache
def register() -> None:
    """Enter GPUs in the tables of other suites, once for all."""
    ARRAY_MODULES["cupy"] = CupyArrays
    # Not fused: what the host reads. The device would compute it, and each read would wait for the device.
    register_fusion(FUSION, KernelFusion(CUDA, wanted_on_host))
    register_residual_blocks()
    PROVIDERS["cupy"] = GPU_PROVIDERS
    decide.register(GpuDevices, connect_gpus)


register()
