"""Start the workers of a machine, at first and at a restart, and give them the state of the run."""
