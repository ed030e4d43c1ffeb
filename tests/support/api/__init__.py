"""A model of the public API, which generated programs are compared with."""
