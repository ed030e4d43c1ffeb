"""CUDA graphs, and all-reduces that begin before a gradient is complete: off by default, and unproven.

``speed_up`` puts a device that records, and a rank that overlaps, in the place of the usual ones. Nothing in
this folder has run on a GPU yet. All else works without it, and ``fork`` imports it only where GPUs are to
have one of the two.
"""

from __future__ import annotations

from dataclasses import replace

from synk.gpu.speedups.linker import RecordingDevice
from synk.gpu.speedups.overlapping import OverlappingCommunicator
from synk.gpu.speedups.overlapping_rank import OverlappingRank
from synk.run.device import Devices


def speed_up(devices: Devices, cuda_graphs: bool, overlap: bool) -> Devices:
    """Return GPUs that record what they launch, that exchange gradients early, or both."""
    if cuda_graphs:
        devices = replace(devices, gpu_device=RecordingDevice)
    if overlap:
        devices = replace(devices, communicator=OverlappingCommunicator, rank=OverlappingRank)
    return devices
