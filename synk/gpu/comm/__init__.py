"""Collectives between GPUs, by NCCL or through shared memory."""
