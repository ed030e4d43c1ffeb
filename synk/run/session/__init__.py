"""The run that is open: the session behind `synk.fork`, and one command at a time for all of its ranks.

How workers are started, watched and replaced is `synk.run.launch`.
"""
