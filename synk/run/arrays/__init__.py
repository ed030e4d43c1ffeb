"""Data and shared variables: what they are made of, and where their values live."""
