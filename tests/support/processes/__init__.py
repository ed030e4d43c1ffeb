"""Run scripts in separate processes, and find resources that processes leave behind."""
