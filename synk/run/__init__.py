"""A run: its workers from birth to end, and one command at a time."""
