"""Do one rank's part: programs on its rows, and steps of commands."""
