"""Record what each rank does, and when: a trace for a viewer, and a summary of which rank waits for which."""
