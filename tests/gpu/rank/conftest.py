"""Runs on GPUs that are not there."""

from support.cupy.gpu_runs import any_size as any_size
from support.cupy.gpu_runs import cupy as cupy
from support.cupy.gpu_runs import gpus as gpus
from support.cupy.gpu_runs import machine as machine
