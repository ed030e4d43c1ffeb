"""Functions, sequences and collectives, from what the user writes to steps of a command."""
