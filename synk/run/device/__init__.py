"""The devices on which ranks compute: processor cores (``cpu``) or GPUs (`synk.gpu.device.cuda_device`).

``choose`` decides which of them a run uses.
"""

from synk.gpu.device.cuda_device import CudaDevice as CudaDevice
from synk.run.device.choose import MEMORY_LIMIT as MEMORY_LIMIT
from synk.run.device.choose import Devices as Devices
from synk.run.device.choose import choose_devices as choose_devices
from synk.run.device.cpu import CpuDevice as CpuDevice
from synk.run.device.device import Device as Device
