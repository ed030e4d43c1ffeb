"""Ranks that compute on a GPU."""
