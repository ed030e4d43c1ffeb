"""Several machines: how their leaders exchange arrays over MPI, and how the MPI job is started and ended."""
