"""The tests for GPUs: runs that they start, the commands that run them, and the report."""
