"""Ops that are collectives, which let a graph combine or exchange values of all ranks."""
