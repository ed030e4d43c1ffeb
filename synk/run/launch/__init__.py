"""Start the workers of a machine, watch over them, and replace them at a restart.

`recovery` keeps what `synk.commit` has collected, and gives it to new workers; `watchdog` notices deadlines,
and collects the stacks of all ranks for the error.
"""
