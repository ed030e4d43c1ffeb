"""Connections of ranks in tests: barriers and channels without processes, and ranks that are threads."""
