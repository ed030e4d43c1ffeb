#!/bin/bash
# As slurm_fork.sbatch, but from a terminal, where the output is seen and ^C works:
#
#     bash deploy/slurm_salloc.sh train.py
#
# The script runs where salloc does. Where that is the login node, and not the first machine, submit the other.
set -euo pipefail

exec salloc --nodes=3 --ntasks-per-node=1 --cpus-per-task=8 --no-kill "$PWD/.venv/bin/python" "$@"
