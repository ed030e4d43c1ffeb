"""One run: its session, its workers from fork to end, and one command at a time."""
