"""Collectives: one interface, a communicator per kind of connection."""

from synk.comm.base import Communicator as Communicator
from synk.comm.base import ObservedCommunicator as ObservedCommunicator
from synk.comm.base import SharedArrays as SharedArrays
from synk.comm.host import HostCommunicator as HostCommunicator
from synk.comm.lone import LoneCommunicator as LoneCommunicator
from synk.comm.machines_communicator import MachinesCommunicator as MachinesCommunicator
from synk.gpu.comm.nccl import NcclCommunicator as NcclCommunicator
from synk.gpu.comm.staged import StagedCommunicator as StagedCommunicator
