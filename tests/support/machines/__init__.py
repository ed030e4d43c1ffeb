"""Leaders of several machines without machines: threads of one process."""
