"""Entries for loops inside of graphs: Scan, whose values lie in traces, and loops of scalars."""

from synk.compile.dispatch.scan import scalar_loop, steps

__all__ = ["scalar_loop", "steps"]
