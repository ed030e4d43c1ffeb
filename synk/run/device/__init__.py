"""The devices on which ranks compute: processor cores (``cpu``), unless ``choose`` finds others to use."""

from synk.run.device.choose import choose_devices as choose_devices
from synk.run.device.cpu import CpuDevice as CpuDevice
from synk.run.device.device import Device as Device
from synk.run.device.devices import CpuDevices as CpuDevices
from synk.run.device.devices import Devices as Devices
from synk.run.device.options import GpuOptions as GpuOptions
