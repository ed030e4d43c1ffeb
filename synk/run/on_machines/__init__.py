"""Runs on several machines: start a process on each other machine, its leader, which starts workers there.

The leader takes the master's part on its machine: it is the machine's first rank, and passes commands on to
the workers and their replies to the master.
"""
