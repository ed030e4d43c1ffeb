"""`Data` and shared variables: their values in memory, and the master's records of them."""
