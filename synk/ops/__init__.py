"""Symbolic operations of networks."""
