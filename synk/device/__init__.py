"""Devices: what a rank computes on."""

from synk.device.base import Device as Device
from synk.device.cpu import CpuDevice as CpuDevice
