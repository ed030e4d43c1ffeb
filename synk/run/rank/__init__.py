"""One rank's part of a command: take its rows, run programs on them slice by slice, add up the results."""
