"""One run: its session, functions, collectives, ranks and arrays."""
