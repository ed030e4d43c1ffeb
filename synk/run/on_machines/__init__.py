"""Start a run on several machines, and lead the workers of each."""
