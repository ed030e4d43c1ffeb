"""Start the workers of one machine, watch over them, and replace them at a restart.

`recovery` keeps the values of `synk.commit`, and gives them to new workers. `watchdog` checks deadlines of
commands, and collects the stacks of all ranks for the error.
"""
