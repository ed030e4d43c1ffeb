"""Helpers of tests: each folder has fakes of one part, such as CuPy or NCCL, or tools for one suite."""
