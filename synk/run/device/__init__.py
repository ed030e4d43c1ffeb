"""Devices: what a rank computes on.

``choose`` decides for a run: cores (``cpu``) or GPUs (``cuda``), which ``probe`` counts in a process that
runs ``driver``; ``cupy_library`` imports CuPy.
"""

from synk.gpu.device.cuda_device import CudaDevice as CudaDevice
from synk.run.device.choose import MEMORY_LIMIT as MEMORY_LIMIT
from synk.run.device.choose import Devices as Devices
from synk.run.device.choose import choose_devices as choose_devices
from synk.run.device.cpu import CpuDevice as CpuDevice
from synk.run.device.device import Device as Device
