"""Entries of Ops that compute otherwise on a GPU."""
