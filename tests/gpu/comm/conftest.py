"""Runs on GPUs that are not there."""

from support.cupy.gpu_runs import cupy as cupy
from support.cupy.gpu_runs import gpus as gpus
