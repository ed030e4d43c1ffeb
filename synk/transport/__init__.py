"""Between ranks: shared memory, processes, commands, collectives of arrays, machines."""
