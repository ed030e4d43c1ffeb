"""The collectives on shared variables, one class for each.

A class checks the arguments on the master, makes the step that every rank runs, and turns the results of the
ranks into what the script gets.
"""
