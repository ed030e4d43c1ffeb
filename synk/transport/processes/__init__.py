"""Child processes and signals: start them, watch for their deaths, keep what they print."""
