"""Processes and signals: who lives, who hangs, what was last heard of whom."""
