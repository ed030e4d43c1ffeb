"""Functions, sequences and collectives, from what the user writes to steps of a command.

Calls are checked here. The arithmetic lies below: `synk.values.rows` decides which rows a rank reads, and
`synk.values.reduction` combines the results of ranks.
"""
