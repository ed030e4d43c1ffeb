"""The session of the open run, which `synk.fork` makes: it sends commands, one at a time, to all ranks.

`synk.run.launch` starts, watches and replaces the workers.
"""
