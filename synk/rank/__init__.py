"""What every rank does: programs on its rows, and steps of commands."""
