"""Collectives inside of a graph, as Ops."""
