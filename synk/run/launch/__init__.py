"""Start the workers of a machine, and make each fork one."""
