"""Give undeclared results the numbers of one process: let ranks meet inside a graph where its rows do."""

from synk.functions.exact import loops as loops  # registers its rules
