"""Functions, sequences of functions, and objects on ranks: a call of the script becomes steps of a command.

Calls are checked and planned here, in the script's process; the ranks run the steps by `synk.run.rank`.
`synk.values.rows` computes which rows a rank reads, and `synk.values.reduction` combines the results of
ranks.
"""
