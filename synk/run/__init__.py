"""One run, from `synk.fork` to `synk.close`: its session, functions, collectives, ranks and arrays."""
