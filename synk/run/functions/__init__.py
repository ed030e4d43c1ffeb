"""Functions, sequences of them, and objects on ranks: from what the user writes to steps of a command.

Calls are checked and planned here, in the script's process. The ranks carry them out in `synk.run.rank`,
slice by slice. The arithmetic lies below: `synk.values.rows` decides which rows a rank reads, and
`synk.values.reduction` combines the results of ranks.
"""
