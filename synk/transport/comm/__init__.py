"""Communicators, which run the collectives on arrays: one class for each way in which ranks are connected."""

from synk.transport.comm.communicator import Communicator as Communicator
from synk.transport.comm.communicator import SharedArrays as SharedArrays
from synk.transport.comm.host_communicator import HostCommunicator as HostCommunicator
from synk.transport.comm.lone import LoneCommunicator as LoneCommunicator
from synk.transport.comm.machines_communicator import MachinesCommunicator as MachinesCommunicator
