"""The suite that every communicator passes, and NCCL between threads and between processes."""
