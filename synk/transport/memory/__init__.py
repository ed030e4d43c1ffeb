"""Shared memory: segments of it, their limits, and rows gathered from it."""
