"""Which rewrites a graph goes through before it is compiled, and those that PyTensor lacks."""
